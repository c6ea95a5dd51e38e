"""Answers of one stream in the order of its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from ts_stateful.asgi.in_order import in_order


async def _source(*answers: AsyncGenerator[str, None]) -> AsyncIterator[AsyncGenerator[str, None]]:
    for answer in answers:
        yield answer


def test_a_quick_answer_waits_for_the_one_before_it() -> None:
    """It is collected meanwhile."""

    async def run() -> list[str]:
        collected = asyncio.Event()

        async def slow() -> AsyncGenerator[str, None]:
            await collected.wait()
            yield "a"
            yield "b"

        async def quick() -> AsyncGenerator[str, None]:
            yield "c"
            collected.set()

        return [message async for message in in_order(_source(slow(), quick()))]

    assert asyncio.run(run()) == ["a", "b", "c"]


def test_the_rest_is_closed_at_the_end() -> None:
    """A client that disconnects drops all its requests."""

    async def run() -> list[str]:
        closed = []

        async def endless(name: str) -> AsyncGenerator[str, None]:
            try:
                yield name
                await asyncio.Event().wait()
            finally:
                closed.append(name)

        async with contextlib.aclosing(in_order(_source(endless("a"), endless("b")))) as messages:
            async for _ in messages:
                await asyncio.sleep(0)  # the second one has begun
                break
        return sorted(closed)

    assert asyncio.run(run()) == ["a", "b"]


def test_a_client_that_leaves_far_behind_its_requests_drops_them_all() -> None:
    """More answers may wait than fit the queue; the reader that waits for a place in it ends too."""

    async def run() -> tuple[int, int]:
        began, closed = [], []

        async def endless(number: int) -> AsyncGenerator[str, None]:
            began.append(number)
            try:
                yield "a"
                await asyncio.Event().wait()
            finally:
                closed.append(number)

        messages = in_order(_source(*(endless(number) for number in range(100))))
        assert await anext(messages) == "a"
        for _ in range(10):  # the reader fills the queue
            await asyncio.sleep(0)
        await asyncio.wait_for(messages.aclose(), 20.0)
        return len(began), len(closed)

    num_began, num_closed = asyncio.run(run())
    assert num_began > 64
    assert num_closed == num_began
