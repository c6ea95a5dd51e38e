"""The front's process: `python -m ts_stateful.asgi.process SETTINGS`. `supervisor` starts it, and starts it again.

SIGTERM drains it. Its standard output has one line, `ready`, when all models answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import uvloop

from ts_stateful.asgi.admin import TokenGuard, make_admin_app
from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.listener import Listener, make_listener
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.open_inference.rpc import add_inference_service
from ts_stateful.asgi.routes import make_app, make_management_app, make_metrics_app
from ts_stateful.asgi.rpc.health import add_grpc_services
from ts_stateful.asgi.rpc.torchserve import InferenceService
from ts_stateful.asgi.settings import ADMIN_TOKEN, FrontSettings
from ts_stateful.config.schema import ConfigError
from ts_stateful.frontend.metrics.cloudwatch import CloudWatchMetrics
from ts_stateful.frontend.metrics.prometheus import EngineMetrics
from ts_stateful.frontend.observation import Observation
from ts_stateful.pb.inference_pb2_grpc import add_InferenceAPIsServiceServicer_to_server
from ts_stateful.process.logs import configure_logs
from ts_stateful.process.names import take_name
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.supervisor import EngineDied
from ts_stateful.serving.ports import in_url

__all__ = ["FRONT", "main", "raise_file_limit"]

logger = logging.getLogger("ts_stateful.front")

FRONT = "ts-front"
"""The name of the process in `ps -e` and `top`."""

_PR_SET_PDEATHSIG = 1  # of prctl(2)
# Objects between collections: with Python's 700, they take 3 % of the time of 128 sequences' steps.
_COLLECT_AFTER = 10_000
_GRACE_S = 1.0  # for calls that are answered, to end
_PING_MS = 1000  # between keepalive pings. By default gRPC ends a connection with pings in less than five minutes
_MOST_FILES = 1 << 20  # of a hard limit that may be infinite


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; return 0, or 1 if a model cannot be loaded, with the reason in a file beside the settings."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    take_name(FRONT)
    configure_logs("front")
    raise_file_limit()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        uvloop.run(_serve(FrontSettings.load(Path(path))))
    except (ConfigError, EngineDied) as error:
        Path(path).with_suffix(".reason").write_text(str(error), encoding="utf-8")
        return 1
    return 0


def raise_file_limit() -> None:
    """Take as many descriptors as the hard limit allows; the soft one is 1,024 on most systems.

    A connection beyond it is accepted, and closed without an answer or a line in the log.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: FrontSettings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the supervisor as well
    admin_token = os.environ.pop(ADMIN_TOKEN, None)  # engines and decoders need it not
    forks = ForkServer()
    observation = Observation(os.environ)
    models = _observed_models(settings, forks, observation)
    bodies = BodyReader(settings.max_body_bytes)
    listeners = [
        (make_listener(make_app(models, bodies), settings, tls=settings.tls), settings.http_fd),
        (make_listener(make_management_app(models), settings), settings.management_fd),
        (make_listener(make_metrics_app(observation.registry), settings), settings.metrics_fd),
        *_admin_listeners(models, settings, admin_token),
    ]
    running = [
        asyncio.ensure_future(listener.serve(sockets=[socket.socket(fileno=fd)]))
        for listener, fd in listeners
    ]
    rpc = _make_rpc(models, settings)
    try:
        _open_port(rpc, settings)
        await rpc.start()
        if not await models.start(stop):
            return
        _settle()
        drain_s = max(model.config.engine.drain_sec for model in models)
        sys.stdout.write(f"ready {drain_s}\n")
        sys.stdout.flush()
        await stop.wait()
        await models.drain(drain_s)
    finally:
        models.close()  # answers the requests that are left
        await rpc.stop(_GRACE_S)
        for listener, _ in listeners:
            listener.should_exit = True
        await asyncio.gather(*running, return_exceptions=True)
        forks.close()  # it may hang in an import
        observation.close()


def _settle() -> None:
    """Leave all objects out of collections: those of a big body make them frequent, and they would visit every object."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def _observed_models(
    settings: FrontSettings, forks: ForkServer, observation: Observation
) -> Models:
    # The supervisor passes standard error on unchanged.
    fronts = [
        ModelFront(one, forks, CloudWatchMetrics.of(one.name, os.environ, sys.stderr))
        for one in settings.models
    ]
    models = Models(fronts)
    models.metrics = observation.metrics
    for model in models:
        model.intake.observer = observation.of(model.name)
    observation.registry.register(EngineMetrics(model.measured for model in models))
    return models


def _admin_listeners(
    models: Models, settings: FrontSettings, token: str | None
) -> list[tuple[Listener, int]]:
    """Return the listeners of the socket, whose mode lets in this user alone, and of the port, which needs the token."""
    app = make_admin_app(models)
    listeners = [(make_listener(app, settings), settings.admin_fd)]
    if settings.admin_port_fd is not None and token:
        guarded = make_listener(TokenGuard(app, token), settings)
        listeners.append((guarded, settings.admin_port_fd))
    return listeners


def _make_rpc(models: Models, settings: FrontSettings) -> Any:
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    )
    add_InferenceAPIsServiceServicer_to_server(InferenceService(models), server)  # type: ignore[no-untyped-call]
    add_inference_service(server, models)
    add_grpc_services(server, models)
    return server


def _open_port(rpc: Any, settings: FrontSettings) -> None:
    """Raises `RuntimeError` if the port has been taken since the supervisor looked."""
    address = f"{in_url(settings.host)}:{settings.grpc_port}"
    tls = settings.tls
    if tls is None:
        rpc.add_insecure_port(address)
        return
    trusted = Path(tls.client_ca).read_bytes() if tls.client_ca is not None else None
    pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
    asks = trusted is not None
    rpc.add_secure_port(address, grpc.ssl_server_credentials([pair], trusted, asks))


if __name__ == "__main__":
    sys.exit(main())
