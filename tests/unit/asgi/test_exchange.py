"""One request at the front, and its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_dispatcher import ScriptedDispatcher
from ts_stateful.asgi.exchange import SubmittedRequest
from ts_stateful.asgi.request_headers import grpc_headers
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.body import PUSHED
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
        model: Any = SimpleNamespace(
            intake=self.intake, mailbox=self.mailbox, placed=lambda arrival: arrival
        )
        return SubmittedRequest(model, Arrival(data, grpc_headers(None)))

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
