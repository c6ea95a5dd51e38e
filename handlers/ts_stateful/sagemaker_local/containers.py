"""The containers of an endpoint, by their contract: `POST /invocations` and `GET /ping`.

Owns the connections to them and what their failures are called. Knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType

import httpx

from ts_stateful.sagemaker_local.calls import Call

__all__ = ["Answer", "Containers", "TimedOut", "Unreachable", "WentAway"]

_PING_TIMEOUT_S = 2.0


class Unreachable(Exception):
    """There was no connection, so the container has seen nothing of the request."""


class WentAway(Exception):
    """The connection broke before the answer was complete."""


class TimedOut(Exception):
    """The answer, or its next part, was not there at the deadline."""


class Answer:
    """An answer while it comes; a context manager, which ends it. `deadline`, by the loop's clock, is that of its last part."""

    def __init__(self, response: httpx.Response, deadline: float) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._deadline = deadline

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes.

        Raises:
            TimedOut, WentAway: it is not complete; what had come before has been given.
        """
        clock = asyncio.get_running_loop().time
        parts = self._response.aiter_raw()
        while True:
            try:
                part = await asyncio.wait_for(anext(parts), self._deadline - clock())
            except StopAsyncIteration:
                return
            except asyncio.TimeoutError:
                raise TimedOut from None
            except httpx.TransportError:
                raise WentAway from None
            yield part

    async def read(self) -> bytes:
        """The whole body; raises as `parts` does."""
        return b"".join([part async for part in self.parts()])

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._response.aclose()


class Containers:
    """The connections; `close` them in the loop in which they are used."""

    def __init__(self) -> None:
        # A connection for each request: one that is kept may be closed by its container at the moment of the next request,
        # which could not be repeated.
        self._http = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, timeout=None
        )

    async def invoke(
        self, url: str, call: Call, body: bytes, *, begin_s: float, total_s: float
    ) -> Answer:
        """The answer of the container at `url` as far as its headers, within `begin_s`; all of it has `total_s`.

        Raises:
            Unreachable, TimedOut, WentAway: there is none.
        """
        deadline = asyncio.get_running_loop().time() + total_s
        # Made without the client, which would add headers of its own.
        request = httpx.Request("POST", f"{url}/invocations", headers=call.headers, content=body)
        sent = self._http.send(request, stream=True)
        try:
            return Answer(await asyncio.wait_for(sent, begin_s), deadline)
        except asyncio.TimeoutError:
            raise TimedOut from None
        except httpx.ConnectError:
            raise Unreachable from None
        except httpx.TransportError:
            raise WentAway from None

    async def is_healthy(self, url: str) -> bool:
        """Whether the container says that it can serve."""
        try:
            answer = await self._http.get(f"{url}/ping", timeout=_PING_TIMEOUT_S)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()
