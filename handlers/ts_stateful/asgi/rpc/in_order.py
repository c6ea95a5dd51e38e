"""Answers to the requests of one gRPC stream, in the order of the requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Protocol, TypeVar

__all__ = ["Answer", "in_order"]

_T_co = TypeVar("_T_co", covariant=True)
_MAX_AHEAD: Final = 64  # answers of one stream that wait for their turn to be sent


class Answer(Protocol[_T_co]):
    """The messages of an answer that comes by itself, also while nobody iterates. It has to be closed, begun or not."""

    def __aiter__(self) -> AsyncIterator[_T_co]:
        """Return the iterator of the messages."""

    async def aclose(self) -> None:
        """Drop the request if it is not answered to the end."""


async def in_order(answers: AsyncIterator[Answer[_T_co]]) -> AsyncGenerator[_T_co, None]:
    """Yield the messages of all answers, each answer as a whole after the one before it.

    Answers that are left at the end of the iteration are closed.
    """
    queue: asyncio.Queue[Answer[_T_co] | None] = asyncio.Queue(_MAX_AHEAD)
    reader = asyncio.ensure_future(_read(answers, queue))
    try:
        while (answer := await queue.get()) is not None:
            async with contextlib.aclosing(answer):
                async for message in answer:
                    yield message
    finally:
        reader.cancel()
        while not queue.empty():  # before its reader ends, which adds the end to it
            left = queue.get_nowait()
            if left is not None:
                await left.aclose()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(
    answers: AsyncIterator[Answer[_T_co]], queue: asyncio.Queue[Answer[_T_co] | None]
) -> None:
    try:
        async for answer in answers:
            try:
                await queue.put(answer)
            except asyncio.CancelledError:
                await answer.aclose()
                raise
    finally:
        await queue.put(None)
