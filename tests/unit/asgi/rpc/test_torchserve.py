"""TorchServe's gRPC service at the front, over a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc.aio

from tests.support.fake_dispatcher import ScriptedDispatcher
from ts_stateful.asgi.rpc.torchserve import InferenceService
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import (
    InferenceAPIsServiceStub,
    add_InferenceAPIsServiceServicer_to_server,
)
from ts_stateful.protocol.events import Event, EventKind
from ts_stateful.protocol.profile import Profile

PATIENCE_S = 20.0


async def until(reached: Callable[[], bool]) -> None:
    """Let the loop run until a state is reached."""
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not reached():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0)


class Front:
    """A model's front whose requests are answered by the test."""

    def __init__(self) -> None:
        self.mailbox = AsyncMailbox()
        self.dispatcher = ScriptedDispatcher(self.mailbox)
        self.intake = self.dispatcher.intake(Profile.ASGI)
        self.config = SimpleNamespace(engine=SimpleNamespace(auth="none"))
        self.takes_batches = False
        self.placed = lambda arrival: arrival

    async def find(self, *_name: str) -> Front:
        """Return the only model."""
        return self

    def check_room(self) -> None:
        """Have room."""

    async def submitted(self, count: int) -> list[str]:
        """Wait until so many requests are submitted; return the ids of all."""
        await until(lambda: len(self.dispatcher.submitted) >= count)
        return list(self.dispatcher.submitted)

    def answer(self, request_id: str, body: bytes, kind: EventKind = EventKind.LAST) -> None:
        """Post a part of an answer."""
        self.mailbox.post(Event(request_id, kind, body))


@asynccontextmanager
async def stream(front: Front) -> AsyncIterator[Any]:
    """Yield a call of the front's service."""
    server = grpc.aio.server()
    service: Any = InferenceService(front)  # type: ignore[arg-type]
    add_InferenceAPIsServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
        yield stub.StreamPredictions2()
    await server.stop(None)


def prompt(number: int) -> PredictionsRequest:
    """Make a streamed prompt of a session of its own."""
    data = b'{"prompt": "hi", "stream": true}'
    return PredictionsRequest(model_name="m", input={"data": data}, sequence_id=f"s{number}")


def test_answers_have_the_order_of_their_requests() -> None:
    """Whichever comes first, and also after the client has half-closed."""

    async def run() -> list[tuple[str, bytes]]:
        front = Front()
        async with stream(front) as call:
            for number in range(3):
                await call.write(prompt(number))
            await call.done_writing()
            first, second, third = await front.submitted(3)
            front.answer(third, b'{"text":"c"}')
            front.answer(second, b'{"text":"b"}')
            front.answer(first, b'{"text":"a"}', EventKind.PART)
            front.answer(first, b'{"text":""}')
            found = [(one.sequence_id, one.prediction) async for one in call]
        assert len(front.mailbox) == 0
        assert front.dispatcher.dropped == []
        return found

    texts = [("s0", "a"), ("s0", ""), ("s1", "b"), ("s2", "c")]
    expected = [(name, b'{"text":"%s"}' % text.encode()) for name, text in texts]
    assert asyncio.run(run()) == expected


def test_a_client_that_disconnects_drops_all_its_requests() -> None:
    """Also those that are more than may wait."""

    async def run() -> None:
        front = Front()
        async with stream(front) as call:
            for number in range(100):
                await call.write(prompt(number))
            await front.submitted(65)
            call.cancel()
            await until(lambda: not len(front.mailbox))
        assert sorted(front.dispatcher.dropped) == sorted(front.dispatcher.submitted)

    asyncio.run(run())
