"""The dialect of DJL Serving's LMI containers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import ask
from tests.support.fake_dispatcher import ID
from ts_stateful.protocol.errors import EngineUnavailable, SessionNotFound
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Close, Open, Prompt


@pytest.mark.parametrize("header", [None, "", "NEW_SESSION"])
def test_a_session_is_started(header: str | None) -> None:
    """Whatever SageMaker makes of NEW_SESSION."""
    exchange = ask({"requestType": "NEW_SESSION"}, headers=None if header is None else {ID: header})
    assert isinstance(exchange.command, Open)
    assert (exchange.submit.creates_session, exchange.submit.ephemeral) == (True, False)
    assert exchange.answered({"session_id": "s"}) == {"result": "Session s created"}


def test_a_session_is_closed() -> None:
    """The header names it."""
    exchange = ask({"requestType": "CLOSE"}, headers={ID: "s"})
    assert exchange.command == Close(session_id="s")
    assert exchange.answered({"session_id": "s"}) == {"result": "Session s closed"}
    error = {"error": "no such session", "code": 404}
    assert exchange.fails(SessionNotFound("no such session")) == (404, error)


def test_a_prompt_in_a_session() -> None:
    """Parameters are those of `prompt` under other names."""
    parameters = {
        "max_new_tokens": 5,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.9,
        "seed": 3,
        "stop_sequences": ["."],
        "repetition_penalty": 1.2,
        "stop_token_ids": [3],
        "watermark": None,
    }
    exchange = ask({"inputs": "hi", "parameters": parameters}, headers={ID: "s"})
    assert exchange.command == Prompt(
        session_id="s",
        prompt="hi",
        max_new_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        stop=(".",),
        stop_token_ids=(3,),
        repetition_penalty=1.2,
    )
    assert exchange.answered() == {"generated_text": "red"}


def test_a_prompt_without_a_session_is_independent() -> None:
    """Its session ends with the answer; with a header `none yet` it stays open."""
    assert ask({"inputs": "hi"}).submit.ephemeral
    opening = ask({"inputs": "hi"}, headers={ID: "NEW_SESSION"}).submit
    assert (opening.creates_session, opening.ephemeral) == (True, False)


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0),
        ({"temperature": 0.7}, 0.7),
        ({"do_sample": True}, 1),
        ({"do_sample": False, "temperature": 0.7}, 0),
    ],
)
def test_whether_a_reply_is_sampled(parameters: dict[str, Any], temperature: float) -> None:
    """`do_sample` decides where it is given, else the temperature."""
    assert ask({"inputs": "hi", "parameters": parameters}).command.temperature == temperature


def test_details_and_the_prompt_come_with_the_text_where_they_are_asked_for() -> None:
    """Under LMI's names."""
    parameters = {"details": True, "return_full_text": True}
    answer = ask({"inputs": "hi ", "parameters": parameters}).answered()
    assert answer["generated_text"] == "hi red"
    assert answer["details"]["finish_reason"] == "eos_token"
    assert answer["details"]["generated_tokens"] == 2


def test_a_stream_is_json_lines_of_which_the_last_has_the_text() -> None:
    """One line a piece."""
    exchange = ask({"inputs": "hi", "stream": True})
    assert exchange.submit.streams
    assert exchange.responder.stream_type == "application/jsonlines"
    *lines, end = exchange.streamed("dark", "\n").decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"token": {"text": "dark"}},
        {"token": {"text": "\n"}},
    ]
    assert json.loads(end)["token"] == {"text": "red"}
    assert json.loads(end)["generated_text"] == "dark\nred"
    assert json.loads(end)["details"]["finish_reason"] == "eos_token"


def test_a_stream_that_fails_has_the_error_in_its_last_line() -> None:
    """The status was sent before."""
    lines = ask({"inputs": "hi", "stream": True}).streamed("a", error=EngineUnavailable("gone"))
    end = json.loads(lines.decode().splitlines()[-1])
    assert (end["details"]["finish_reason"], end["error"], end["code"]) == ("error", "gone", 503)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"inputs": 5}, "inputs"),
        ({"inputs": ["a", "b"]}, "inputs"),
        ({"inputs": "hi", "max_new_tokens": 5}, "max_new_tokens"),
        ({"inputs": "hi", "stream": "yes"}, "stream"),
        ({"inputs": "hi", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"inputs": "hi", "parameters": {"stop_sequences": [1]}}, "parameters.stop_sequences"),
        ({"inputs": "hi", "parameters": {"num_beams": 4}}, "parameters.num_beams"),
        ({"inputs": "hi", "parameters": {"nonsense": 4}}, "parameters.nonsense"),
        ({"inputs": "hi", "parameters": {"do_sample": "x"}}, "parameters.do_sample"),
        ({"inputs": "hi", "parameters": {"details": 2}}, "parameters.details"),
        ({"inputs": "hi", "parameters": []}, "parameters"),
        ({"requestType": "OPEN"}, "requestType"),
        ({"requestType": ["CLOSE"]}, "requestType"),
        ({"requestType": "NEW_SESSION", "inputs": "hi"}, "inputs"),
        ({"requestType": "CLOSE"}, "session"),
    ],
)
def test_what_is_wrong_is_named_in_djls_form(document: Any, field: str) -> None:
    """A sentence and the status."""
    status, body = ask(document).refusal
    assert status == 400
    assert body["code"] == 400
    assert field in body["error"]
    assert body.keys() == {"error", "code"}


def test_files_go_with_own_requests_alone() -> None:
    """A form has its JSON in a part, in any dialect."""
    exchange = ask({}, data={"data": b'{"inputs": "hi"}', "image": b"PNG"})
    assert exchange.refusal[0] == 400
    assert "code" in exchange.refusal[1]


def test_over_grpc_it_works_where_replies_are_pushed() -> None:
    """Its clients cannot pull replies, as the continuous profile requires."""
    for profile in (Profile.SEQUENCE, Profile.ASYNC):
        assert ask({"inputs": "hi"}, grpc=True, profile=profile).command.prompt == "hi"
    assert ask({"inputs": "hi"}, grpc=True).refusal[0] == 400
    assert isinstance(ask({"requestType": "NEW_SESSION"}, grpc=True).command, Open)
