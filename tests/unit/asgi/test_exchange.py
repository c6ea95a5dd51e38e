"""One request at the front, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_dispatcher import ScriptedDispatcher
from ts_stateful.asgi.exchange import Submitted, SubmittedRequest, submit
from ts_stateful.asgi.request_headers import grpc_headers
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.body import PUSHED
from ts_stateful.frontend.parsing.limits import BodyLimits
from ts_stateful.protocol.errors import ServerBusy
from ts_stateful.protocol.events import Event, EventKind
from ts_stateful.protocol.profile import Profile


class Front:
    """The front of one model, as far as an exchange needs it."""

    def __init__(self) -> None:
        self.mailbox = AsyncMailbox()
        self.dispatcher = ScriptedDispatcher(self.mailbox)
        self.intake = self.dispatcher.intake(Profile.ASGI)
        self.ended: list[str] = []
        self.intake.observer = SimpleNamespace(
            answered=lambda *_: self.ended.append("answered"),
            dropped=lambda *_: self.ended.append("dropped"),
        )

    def begin(self) -> SubmittedRequest:
        """Submit a prompt."""
        prompt = b'{"prompt": "hi", "stream": true, "session_id": "s"}'
        data = {"data": prompt, "rpc": PUSHED}
        return SubmittedRequest(self._model(), Arrival(data, grpc_headers(None)))

    def submit(self, body: bytes, check_room: Callable[[int], None] = lambda _: None) -> Submitted:
        """Submit what may be a batch."""
        model = self._model(takes_batches=True, limits=BodyLimits(), check_room=check_room)
        return submit(model, Arrival({"data": body}, grpc_headers(None)))

    def _model(self, **facts: Any) -> Any:
        return SimpleNamespace(
            intake=self.intake, mailbox=self.mailbox, placed=lambda arrival: arrival, **facts
        )

    async def post(self, kind: EventKind, body: bytes) -> None:
        """Let an event of the request arrive."""
        (request_id,) = self.dispatcher.submitted
        self.mailbox.post(Event(request_id, kind, body))
        await asyncio.sleep(0)


def test_a_request_is_answered_to_its_end() -> None:
    """It was submitted before anyone asks for its responses."""

    async def run() -> list[bytes]:
        front = Front()
        exchange = front.begin()
        await front.post(EventKind.PART, b'{"text":"a"}')
        await front.post(EventKind.LAST, b'{"text":"b"}')
        found = [response.body async for response in exchange]
        assert front.ended == []
        await exchange.aclose()
        await exchange.aclose()
        assert front.ended == ["answered"]
        assert len(front.mailbox) == 0
        return found

    assert asyncio.run(run()) == [b'{"text":"a"}', b'{"text":"b"}']


@pytest.mark.parametrize("kind", [EventKind.PART, EventKind.LAST])
def test_a_request_without_an_answer_is_dropped(kind: EventKind) -> None:
    """One whose answer is here was answered, also if nobody has asked for it."""

    async def run() -> list[str]:
        front = Front()
        exchange = front.begin()
        await front.post(kind, b'{"text":"a"}')
        await exchange.aclose()
        assert len(front.mailbox) == 0
        return front.ended

    assert asyncio.run(run()) == ["answered" if kind is EventKind.LAST else "dropped"]


_BATCH = b'{"type": "batch", "requests": [%b]}' % b",".join(
    b'{"type": "info", "session_id": "%d"}' % number for number in range(3)
)


def test_the_answers_of_a_batch_are_one_response_in_its_order() -> None:
    """They come in any order."""

    async def run() -> list[bytes]:
        front = Front()
        exchange = front.submit(_BATCH)
        for number, request_id in reversed(list(enumerate(front.dispatcher.submitted))):
            front.mailbox.post(Event(request_id, EventKind.LAST, b'{"at":%d}' % number))
        await asyncio.sleep(0)
        found = [response.body async for response in exchange]
        await exchange.aclose()
        assert front.ended == 3 * ["answered"]
        return found

    assert asyncio.run(run()) == [b'{"answers":[{"at":0},{"at":1},{"at":2}]}']


def test_a_client_that_leaves_drops_the_batch() -> None:
    """But for what is answered."""

    async def run() -> list[str]:
        front = Front()
        exchange = front.submit(_BATCH)
        first, *_ = front.dispatcher.submitted
        front.mailbox.post(Event(first, EventKind.LAST, b"{}"))
        await asyncio.sleep(0)
        await exchange.aclose()
        assert len(front.mailbox) == 0
        return sorted(front.ended)

    assert asyncio.run(run()) == ["answered", "dropped", "dropped"]


def test_a_batch_is_refused_as_a_whole() -> None:
    """Nothing of it was submitted."""

    def refuse(count: int) -> None:
        raise ServerBusy(f"no room for {count}", retry_after_s=1.0)

    async def run() -> list[int]:
        front = Front()
        exchange = front.submit(_BATCH, refuse)
        statuses = [response.status async for response in exchange]
        await exchange.aclose()
        assert not front.dispatcher.submitted
        return statuses

    assert asyncio.run(run()) == [503]
