"""The local endpoint in this process: an application on a thread of its own, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import boto3
from aiohttp import web
from botocore.config import Config

from deploy.sagemaker.local.routing import Instance, Router
from deploy.sagemaker.local.server import ServiceLimits, make_app
from tests.support.clock import FakeClock
from tests.support.fake_servers import http_server
from tests.support.fake_sessions import FakeSessions
from ts_stateful.cli.terminal import Terminal
from ts_stateful.protocol.sagemaker import CLOSED_SESSION_ID, SESSION_ID

__all__ = ["ENDPOINT", "boto_client", "endpoint_of", "serving"]

ENDPOINT = "Demo-session-1"  # of upper and lower case, with a word that errors have too
_PATIENCE_S = 30.0


@contextlib.contextmanager
def serving(*apps: web.Application) -> Iterator[list[str]]:
    """Serve applications on loopback; yield their URLs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runners.append(
            web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        )
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        host, port = runners[-1].addresses[0][:2]
        return f"http://{host}:{port}"

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(_PATIENCE_S)

    try:
        yield [run(start(app)) for app in apps]
    finally:
        for runner in reversed(runners):
            run(runner.cleanup())
        run(_finish())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_S)
        loop.close()


async def _finish() -> None:
    """End the remaining tasks, as `asyncio.run` does."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


@contextlib.contextmanager
def endpoint_of(*fakes: FakeSessions, limits: ServiceLimits | None = None) -> Iterator[str]:
    """Yield the URL of an endpoint with an instance for each of these."""
    with contextlib.ExitStack() as stack:
        names = (SESSION_ID, CLOSED_SESSION_ID)
        ports = [stack.enter_context(http_server(fake, headers=names)) for fake in fakes]
        instances = [Instance(f"http://127.0.0.1:{port}") for port in ports]
        router = Router(instances, FakeClock())
        app = make_app(ENDPOINT, router, Terminal(io.StringIO()), limits or ServiceLimits())
        yield stack.enter_context(serving(app))[0]


def boto_client(url: str, **config: Any) -> Any:
    """Make boto3's own client of the runtime API; the caller closes it."""
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="eu-central-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def parts_of(events: Sequence[dict[str, Any]]) -> bytes:
    """Join the payload parts of a stream."""
    return b"".join(event["PayloadPart"]["Bytes"] for event in events)
