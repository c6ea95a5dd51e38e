"""This package's own protocol, unchanged by the other dialects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialects import REPLY, ask
from ts_stateful.protocol.errors import QueueFull
from ts_stateful.protocol.requests import Prompt, Step


def test_an_own_request_is_answered_as_it_comes_from_the_engine() -> None:
    """Documents pass untouched, and a stream is server-sent events."""
    exchange = ask({"prompt": "hi", "session_id": "s", "stream": True})
    assert exchange.command == Prompt(prompt="hi", session_id="s", stream=True)
    assert not exchange.submit.ephemeral
    assert exchange.answered() == REPLY
    stream = exchange.streamed("a").decode()
    assert stream.startswith('data: {"text":"a"}\n\ndata: {"text":"red"')
    assert stream.endswith("\n\n")


def test_over_grpc_a_piece_is_a_document() -> None:
    """Without any framing."""
    exchange = ask({"prompt": "hi", "stream": True}, grpc=True)
    assert exchange.streamed("a").startswith(b'{"text":"a"}{"text":"red"')


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"prompt": 1}, "prompt"),
        ({"prompt": "hi", "inputs": "hi"}, "inputs"),
        ({"prompt": "hi", "messages": []}, "messages"),
        ({"prompt": "hi", "requestType": "CLOSE"}, "requestType"),
        ({"type": "chat", "messages": []}, "type"),
        ({"type": "open", "path": "x"}, "path"),
        ({"type": ["start_session"]}, "type"),
        ({"type": "prompt", "inputs": "hi"}, "inputs"),
        ({}, "type"),
        (b"{", None),
        (b'{"inputs": NaN}', "inputs"),
        (b'{"requestType": "CLOSE", "requestType": "CLOSE"}', "requestType"),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_what_is_wrong_in_an_own_way_is_refused_in_the_own_way(
    document: Any, field: str | None
) -> None:
    """Names of other dialects beside `prompt` or `type` change nothing, nor does what cannot be read at all."""
    status, body = ask(document).refusal
    assert status == 400
    assert body["error"]["code"] == "invalid_request"
    assert body["error"].get("field") == field


def test_a_step_is_told_from_a_prompt_of_another_dialect() -> None:
    """Its inputs are objects."""
    assert isinstance(ask({"inputs": [{"name": "x", "data": [1]}]}).command, Step)


def test_a_path_of_no_dialect_is_ignored() -> None:
    """As it was without dialects."""
    exchange = ask({"prompt": "hi"}, headers={"url_path": "something/else"})
    assert exchange.answered() == REPLY
    assert exchange.fails(QueueFull("full"))[1]["error"]["code"] == "queue_full"
