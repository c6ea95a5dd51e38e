"""The endpoint as a process: several TorchServes of one archive, and the runtime API in front of them.

Owns their lifetimes and the signals that end them. TorchServe is started by `ts_stateful.torchserve.server`, one instance after
the other, each on free ports of loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from aiohttp import web

from ts_stateful.protocol.sagemaker import CONTAINER_VARIABLES
from ts_stateful.sagemaker_local.routing import Instance, Router
from ts_stateful.sagemaker_local.server import make_app
from ts_stateful.torchserve.ports import HOST, Ports
from ts_stateful.torchserve.server import ServerFailed, TorchServe

__all__ = ["Settings", "run"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GOODBYE_S = 1.0  # for requests in flight when the endpoint stops


@dataclass(frozen=True)
class Settings:
    """What to serve. Logs of the instances go to files in `log_folder`; `port` 0 is a free one."""

    archive: Path
    endpoint: str
    port: int
    num_instances: int
    config: Path
    log_config: Path
    log_folder: Path
    start_timeout_s: float


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM, then stops every instance. `say` gets the lines that a user waits for, `ready` at last.

    Raises:
        ServerFailed, JavaMissing: the port is taken, or an instance did not start; those that did are stopped.
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
                say(f"instance {number}  {server.http_url}  {server.log_file}")
            asyncio.run(_serve(settings.endpoint, instances, listener, say))
            for end in _SIGNALS:  # what is being stopped is not interrupted
                signal.signal(end, signal.SIG_IGN)
            with ThreadPoolExecutor() as threads:  # each takes some seconds
                list(threads.map(TorchServe.stop, servers))
    except KeyboardInterrupt:
        return


def _server(settings: Settings, number: int, ports: Ports) -> TorchServe:
    log_file = settings.log_folder / f"instance-{number}.log"
    log_file.unlink(missing_ok=True)
    return TorchServe(
        settings.archive,
        config=settings.config,
        log_config=settings.log_config,
        ports=ports,
        log_file=log_file,
        environ=CONTAINER_VARIABLES,
        start_timeout_s=settings.start_timeout_s,
    )


def _bound(port: int) -> socket.socket:
    """A port taken before anything is started, on which nobody listens yet."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        raise ServerFailed(f"in use on {HOST}: port {port}") from None
    return bound


def _distinct_ports(count: int) -> list[Ports]:
    """Free ports for so many servers; one that is offered twice, as nobody listens on it yet, is taken once."""
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
    endpoint: str, instances: list[Instance], listener: socket.socket, say: Callable[[str], None]
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for end in _SIGNALS:
        loop.add_signal_handler(end, stopped.set)
    app = make_app(endpoint, Router(instances), say=say)
    # A request whose client has gone is given up, so that its container hears of it.
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=_GOODBYE_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        say(f"endpoint    {url}/endpoints/{endpoint}/invocations")
        say("ready")
        await stopped.wait()
    finally:
        await runner.cleanup()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
