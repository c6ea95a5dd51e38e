"""The endpoint as a process: several servers with one archive, and the runtime API in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from aiohttp import web

from deploy.sagemaker.local.routing import Instance, Router
from deploy.sagemaker.local.server import make_app
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.cli.terminal import Terminal
from ts_stateful.protocol.sagemaker import CLOSED_SESSION_ID, SESSION_ID
from ts_stateful.serving.local import ServerFailed
from ts_stateful.serving.ports import HOST, Ports
from ts_stateful.serving.server import LocalServer
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

__all__ = ["CONTAINER_VARIABLES", "FRONTS", "Settings", "run"]

FRONTS = ("torchserve", "asgi")
CONTAINER_VARIABLES = {
    "TS_REQUEST_SEQUENCE_ID": SESSION_ID,
    "TS_REQUEST_SEQUENCE_END": CLOSED_SESSION_ID,
}
"""The environment in which TorchServe, in the continuous profile, uses SageMaker's session headers."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GOODBYE_S = 1.0  # for requests in flight when the endpoint stops


@dataclass(frozen=True)
class Settings:
    """Everything that the endpoint serves with. Instances log to files in `log_folder`; `port` 0 takes a free one.

    `front` is one of `FRONTS`; `config` and `log_config` are for `torchserve` alone.
    """

    archive: Path
    endpoint: str
    port: int
    num_instances: int
    front: str
    config: Path
    log_config: Path
    log_folder: Path
    start_timeout_s: float


def run(settings: Settings, terminal: Terminal) -> None:
    """Serve until SIGINT or SIGTERM, then stop every instance. Print the addresses, and `ready` at the end.

    Raises:
        ConfigError: the archive cannot be read.
        ServerFailed, JavaMissing: the port is taken, or an instance did not start; the others are stopped.
    """
    for end in _SIGNALS:  # a shell may have started this with SIGINT ignored
        signal.signal(end, _interrupt)
    try:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(_bound(settings.port))
            instances, servers = [], []
            for number, ports in enumerate(_distinct_ports(settings.num_instances), start=1):
                server = stack.enter_context(_server(settings, number, ports))
                servers.append(server)
                instances.append(Instance(server.http_url))
                terminal.line(f"instance {number}  {server.http_url}  {server.log_file}")
            asyncio.run(_serve(settings.endpoint, instances, listener, terminal))
            for end in _SIGNALS:  # nothing interrupts the stop
                signal.signal(end, signal.SIG_IGN)
            with ThreadPoolExecutor() as threads:  # each takes some seconds
                list(threads.map(LocalServer.stop, servers))
    except KeyboardInterrupt:
        return


def _server(settings: Settings, number: int, ports: Ports) -> LocalServer:
    log_file = settings.log_folder / f"instance-{number}.log"
    log_file.unlink(missing_ok=True)
    if settings.front == "asgi":
        return AsgiServer(
            AsgiServerSettings(
                (str(settings.archive),),
                ports=ports,
                log_file=log_file,
                environ=CONTAINER_VARIABLES,
                start_timeout_s=settings.start_timeout_s,
            )
        )
    return TorchServe(
        TorchServeSettings(
            settings.archive,
            config=settings.config,
            log_config=settings.log_config,
            ports=ports,
            log_file=log_file,
            environ=CONTAINER_VARIABLES,
            start_timeout_s=settings.start_timeout_s,
        )
    )


def _bound(port: int) -> socket.socket:
    """Bind the port before any instance starts; nothing listens on it yet."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        raise ServerFailed(f"port {port} of {HOST} is in use; choose another with --port") from None
    return bound


def _distinct_ports(count: int) -> list[Ports]:
    """Choose free ports for `count` servers. The system may offer a port twice while nothing listens on it."""
    taken: set[int] = set()
    chosen: list[Ports] = []
    while len(chosen) < count:
        ports = Ports().filled()
        numbers = dataclasses.astuple(ports)
        if taken.isdisjoint(numbers):
            taken.update(numbers)
            chosen.append(ports)
    return chosen


async def _serve(
    endpoint: str, instances: list[Instance], listener: socket.socket, terminal: Terminal
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for end in _SIGNALS:
        loop.add_signal_handler(end, stopped.set)
    app = make_app(endpoint, Router(instances), terminal)
    # Cancel a request when its client disconnects; the container then sees the connection close.
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=_GOODBYE_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        terminal.line(f"endpoint    {url}/endpoints/{endpoint}/invocations")
        terminal.line("ready")
        await stopped.wait()
    finally:
        await runner.cleanup()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    for (
        end
    ) in _SIGNALS:  # nothing interrupts the stop; SIG_IGN is an error if the other one is pending
        signal.signal(end, lambda _signal, _frame: None)
    raise KeyboardInterrupt
