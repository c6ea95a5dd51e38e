"""Answers of one stream in the order of its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from ts_stateful.asgi.rpc.in_order import in_order


class _Answer:
    """An answer of some messages after an event; without one it has no end."""

    def __init__(self, messages: str, after: asyncio.Event | None = None) -> None:
        self._messages = messages
        self._after = after or asyncio.Event()
        self.closed = False

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        await self._after.wait()
        for message in self._messages:
            yield message

    async def aclose(self) -> None:
        self.closed = True


async def _source(*answers: _Answer) -> AsyncIterator[_Answer]:
    for answer in answers:
        yield answer


def test_a_quick_answer_waits_for_the_one_before_it() -> None:
    """Each answer is yielded as a whole, and closed after its end."""

    async def run() -> list[str]:
        ready, late = asyncio.Event(), asyncio.Event()
        ready.set()
        answers = [_Answer("ab", late), _Answer("c", ready)]
        asyncio.get_running_loop().call_soon(late.set)
        found = [message async for message in in_order(_source(*answers))]
        assert all(answer.closed for answer in answers)
        return found

    assert asyncio.run(run()) == ["a", "b", "c"]


@pytest.mark.parametrize("count", [2, 200])
def test_the_rest_is_closed_at_the_end(count: int) -> None:
    """A client that disconnects drops all its requests that were read, also if there are more than may wait."""

    async def run() -> list[bool]:
        ready = asyncio.Event()
        ready.set()
        answers = [_Answer("a", ready), *(_Answer("b") for _ in range(count - 1))]
        read = []

        async def source() -> AsyncIterator[_Answer]:
            for answer in answers:
                read.append(answer)
                yield answer

        async with contextlib.aclosing(in_order(source())) as messages:
            async for _ in messages:
                await asyncio.sleep(0)  # the others are read
                break
        return [answer.closed for answer in read]

    closed = asyncio.run(asyncio.wait_for(run(), 10))
    assert len(closed) > 1
    assert all(closed)
