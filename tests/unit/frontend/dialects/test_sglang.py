"""The dialect of the sticky-session sample with SGLang."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialects import ask
from tests.support.fake_dispatcher import ID
from ts_stateful.protocol.errors import SessionExists, SessionExpired
from ts_stateful.protocol.requests import Close, Open, Prompt


def test_a_session_is_started_under_the_clients_id() -> None:
    """Although the header is NEW_SESSION; only a header of the answer names it."""
    document = {"extSessionID": "conversation-1", "requestType": "NEW_SESSION"}
    exchange = ask(document, headers={ID: "NEW_SESSION"})
    assert exchange.command == Open(session_id="conversation-1")
    assert exchange.submit.creates_session
    assert exchange.answered({"session_id": "conversation-1"}) == {}
    refused = exchange.fails(SessionExists("a session of this id is open already"))
    assert refused == (409, {"error": "a session of this id is open already"})


def test_a_prompt_in_a_session() -> None:
    """With the parameters that its client sends by default."""
    document = {
        "inputs": "hi",
        "sampling_params": {"temperature": 0.9, "max_new_token": 128, "do_sample": True},
        "extSessionID": "conversation-1",
        "requestType": "SESSION",
    }
    exchange = ask(document, headers={ID: "conversation-1"})
    assert exchange.command == Prompt(
        session_id="conversation-1", prompt="hi", max_new_tokens=128, temperature=0.9, seed=7
    )
    generation = exchange.answered()["generation"]
    assert generation["text"] == "red"
    assert generation["meta_info"]["cached_tokens"] == 7
    assert exchange.fails(SessionExpired("gone")) == (410, {"error": "gone"})


def test_parameters_may_have_either_name() -> None:
    """What its client sends and what its server reads differ; of both the client's counts."""
    document = {
        "inputs": "hi",
        "parameters": {"temperature": 0.5, "max_new_tokens": 5},
        "sampling_params": {"temperature": 0},
        "requestType": "SESSION",
    }
    command = ask(document).command
    assert (command.temperature, command.max_new_tokens) == (0, 5)


def test_a_prompt_without_a_session_is_independent() -> None:
    """Its client sends a null there."""
    document = {"inputs": "hi", "extSessionID": None, "requestType": "SESSION"}
    assert ask(document).submit.ephemeral


def test_a_session_is_closed() -> None:
    """By header and body, or by one of them."""
    document = {"extSessionID": "conversation-1", "requestType": "CLOSE_SESSION"}
    for headers in ({ID: "conversation-1"}, None):
        exchange = ask(document, headers=headers)
        assert exchange.command == Close(session_id="conversation-1")
        assert exchange.answered({"session_id": "conversation-1", "closed": True}) == {}


@pytest.mark.parametrize("inputs", [{}, {"inputs": ""}, {"inputs": None}])
def test_a_prompt_is_required(inputs: dict[str, Any]) -> None:
    """In these very words."""
    document = {"extSessionID": "c", "requestType": "SESSION", **inputs}
    assert ask(document).refusal == (400, {"error": "inputs is required"})


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"extSessionID": "c", "inputs": 5}, "inputs"),
        ({"extSessionID": "a b", "inputs": "hi"}, "session id"),
        ({"extSessionID": "c", "requestType": "OPEN"}, "requestType"),
        ({"extSessionID": "c", "inputs": "hi", "sampling_params": {"x": 1}}, "sampling_params.x"),
        ({"extSessionID": "c", "inputs": "hi", "parameters": {"x": 1}}, "parameters.x"),
        ({"extSessionID": "c", "inputs": "hi", "stream": True}, "stream"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(document: Any, named: str) -> None:
    """Under `error`."""
    status, body = ask(document).refusal
    assert status == 400
    assert body.keys() == {"error"}
    assert named in body["error"]
