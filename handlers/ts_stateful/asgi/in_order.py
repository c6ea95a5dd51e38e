"""Answers to the requests of one gRPC stream, in the order of the requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Generic, TypeVar

__all__ = ["in_order"]

_T = TypeVar("_T")
_MAX_AHEAD: Final = 64  # answers of one stream that wait for their turn to be sent


async def in_order(answers: AsyncIterator[AsyncGenerator[_T, None]]) -> AsyncGenerator[_T, None]:
    """Yield the messages of all answers, each answer as a whole after the one before it.

    An answer is collected from its arrival on. Those that are left at the end of the iteration are closed.
    """
    queue: asyncio.Queue[_Answer[_T] | None] = asyncio.Queue()
    places = asyncio.Semaphore(_MAX_AHEAD)
    reader = asyncio.ensure_future(_read(answers, queue, places))
    try:
        while (answer := await queue.get()) is not None:
            places.release()
            async with contextlib.aclosing(answer.messages()) as messages:
                async for message in messages:
                    yield message
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        while not queue.empty():
            left = queue.get_nowait()
            if left is not None:
                await left.close()


async def _read(
    answers: AsyncIterator[AsyncGenerator[_T, None]],
    queue: asyncio.Queue[_Answer[_T] | None],
    places: asyncio.Semaphore,
) -> None:
    try:
        async for messages in answers:
            await (
                places.acquire()
            )  # an answer that waits here has not begun, so nothing is left of it
            queue.put_nowait(_Answer(messages))
    finally:
        queue.put_nowait(None)


class _Answer(Generic[_T]):
    """The messages of one answer, which are collected while earlier answers are sent."""

    def __init__(self, messages: AsyncGenerator[_T, None]) -> None:
        self._queue: asyncio.Queue[_T | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._collect(messages))

    async def messages(self) -> AsyncGenerator[_T, None]:
        """Yield the messages."""
        try:
            while (message := await self._queue.get()) is not None:
                yield message
            await self._task
        finally:
            await self.close()

    async def close(self) -> None:
        """Drop the request if it is not answered to the end."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _collect(self, messages: AsyncGenerator[_T, None]) -> None:
        try:
            async with contextlib.aclosing(messages):
                async for message in messages:
                    self._queue.put_nowait(message)
        finally:
            self._queue.put_nowait(None)
