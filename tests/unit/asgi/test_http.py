"""Answers over HTTP, and clients that leave in the middle of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from starlette.types import Message

from ts_stateful.asgi.http import Predictions, joined_lists
from ts_stateful.frontend.pending_response import Response

PATIENCE_S = 20.0


class Endless(Predictions):
    """A front of one answer that never ends. It counts what it has made, and notes that it was closed."""

    def __init__(self, write_s: float = 60.0) -> None:
        super().__init__(cast("Any", None), cast("Any", None), write_s)
        self.num_made = 0
        self.is_closed = False

    def _exchange(self, model: Any, arrival: Any) -> AsyncGenerator[Response, None]:
        return self._responses()

    async def _responses(self) -> AsyncGenerator[Response, None]:
        try:
            while True:
                self.num_made += 1
                yield Response(b"x", more=True)
                await asyncio.sleep(0)
        finally:
            self.is_closed = True


async def pause(num_turns: int) -> None:
    """Let the event loop turn so often."""
    for _ in range(num_turns):
        await asyncio.sleep(0)


async def served(front: Endless, receive: Any, send: Any) -> bool:
    """Serve one answer; return True if it ended."""
    known: Any = type("Known", (), {"request_id": "r", "pairs": lambda self: []})()
    task = asyncio.ensure_future(
        front._serve(cast("Any", None), cast("Any", None), known, receive, send)
    )
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
    return bool(done)


@pytest.mark.parametrize("writing", range(5))
def test_a_client_that_leaves_at_any_moment_ends_its_answer(writing: int) -> None:
    """Also at the very moment when a part of it has been written."""

    async def run(leaves_after: int) -> None:
        async def receive() -> Message:
            await pause(leaves_after)
            return {"type": "http.disconnect"}

        async def send(_message: Message) -> None:
            await pause(writing)

        front = Endless()
        assert await served(front, receive, send), f"after {leaves_after} turns of the loop"
        assert front.is_closed

    for turns in range(1, 40):
        asyncio.run(run(turns))


@pytest.mark.parametrize("unread", ["http.response.start", "http.response.body"])
def test_a_client_that_reads_nothing_counts_as_gone(unread: str) -> None:
    """After `write_s`; its connection is still open. An earlier answer may be what it has not read."""

    async def run() -> None:
        never = asyncio.Event()

        async def receive() -> Message:
            await never.wait()
            return {}

        async def send(message: Message) -> None:
            if message["type"] == unread:
                await never.wait()

        front = Endless(write_s=0.01)
        assert await served(front, receive, send)
        assert (front.num_made, front.is_closed) == (1, True)

    asyncio.run(run())


@pytest.mark.parametrize("refuses", [(), (1,), (0, 1, 2)])
def test_the_list_of_models_has_those_that_answer(refuses: tuple[int, ...]) -> None:
    """A caller may not be allowed to see one of them."""

    async def answer(number: int) -> AsyncGenerator[Response, None]:
        if number in refuses:
            yield Response(b"{}", status=401 + number)
        else:
            yield Response(b'{"object":"list","data":[{"id":"%d"}]}' % number)

    async def run() -> Response:
        return await anext(joined_lists([answer(number) for number in range(3)]))

    response = asyncio.run(run())
    if len(refuses) == 3:
        assert response == Response(b"{}", status=401)
        return
    listed = json.loads(response.body)
    shown = [str(number) for number in range(3) if number not in refuses]
    assert (listed["object"], [each["id"] for each in listed["data"]]) == ("list", shown)
