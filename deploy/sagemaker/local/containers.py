"""The containers of an endpoint: `POST /invocations` and `GET /ping`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType

import httpx

from deploy.sagemaker.local.calls import Invocation

__all__ = ["ContainerAnswer", "Containers", "TimedOut", "Unreachable", "WentAway"]

_PING_TIMEOUT_S = 2.0


class Unreachable(Exception):
    """A connection that was not made; the container has seen nothing of the request."""


class WentAway(Exception):
    """A connection that broke before the answer was complete."""


class TimedOut(Exception):
    """An answer, or a part of one, that missed its deadline."""


class ContainerAnswer:
    """An answer in progress, as a context manager that closes it. `deadline` is of its last part, by the loop's clock."""

    def __init__(self, response: httpx.Response, deadline: float) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._deadline = deadline

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Raises:
            TimedOut, WentAway: the body is incomplete; the parts before were yielded.
        """
        clock = asyncio.get_running_loop().time
        parts = self._response.aiter_raw()
        while True:
            try:
                with _failures():
                    part = await asyncio.wait_for(anext(parts), self._deadline - clock())
            except StopAsyncIteration:
                return
            yield part

    async def read(self) -> bytes:
        """Return the whole body; raises as `parts` does."""
        return b"".join([part async for part in self.parts()])

    async def __aenter__(self) -> ContainerAnswer:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._response.aclose()


class Containers:
    """Connections to containers. Call `close` in the loop that uses them."""

    def __init__(self) -> None:
        # Each request has its own connection. A container may close a kept one just as the next request arrives, and that
        # request could not be repeated.
        self._http = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, timeout=None
        )

    async def invoke(
        self, url: str, call: Invocation, body: bytes, *, begin_s: float, total_s: float
    ) -> ContainerAnswer:
        """Return the answer as soon as its headers are there, within `begin_s`. The whole answer may take `total_s`.

        Raises:
            Unreachable, TimedOut, WentAway: there is no answer.
        """
        deadline = asyncio.get_running_loop().time() + total_s
        # Not made by the client, which would add its own headers.
        request = httpx.Request("POST", f"{url}/invocations", headers=call.headers, content=body)
        with _failures():
            sent = self._http.send(request, stream=True)
            return ContainerAnswer(await asyncio.wait_for(sent, begin_s), deadline)

    async def is_healthy(self, url: str) -> bool:
        """Return True if the container answers `/ping` with 200."""
        try:
            answer = await self._http.get(f"{url}/ping", timeout=_PING_TIMEOUT_S)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except asyncio.TimeoutError:
        raise TimedOut from None
    except httpx.ConnectError:
        raise Unreachable from None
    except httpx.TransportError:
        raise WentAway from None
