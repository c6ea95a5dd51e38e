"""Requests taken in: one row never fails another."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fake_dispatcher import ID, START, ScriptedDispatcher
from tests.support.fake_torchserve import HTTP
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.pending_response import ClientKind
from ts_stateful.protocol.errors import EngineUnavailable
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Prompt

_SECRET = "an embarrassing question\n[METRICS]"


def body(document: Any) -> dict[str, bytes]:
    return {"body": json.dumps(document).encode()}


def test_a_request_is_submitted_as_it_was_parsed() -> None:
    """And the pending response has the form of its answer."""
    dispatcher = ScriptedDispatcher(Inbox())
    data = {"data": b'{"prompt": "hi", "stream": true, "session_id": "s"}', "x": b"PNG"}
    pending = dispatcher.intake(Profile.CONTINUOUS).take("r", data, HTTP)
    prompt = Prompt(prompt="hi", stream=True, session_id="s")
    assert dispatcher.submitted["r"] == Submit(
        "r", prompt, (b"PNG",), num_bytes=sum(map(len, data.values()))
    )
    assert (pending.kind, pending.streams, pending.num_bytes) == (
        ClientKind.HTTP,
        True,
        sum(map(len, data.values())),
    )


@pytest.mark.parametrize("document", [{"prompt": "hi"}, {"prompt": 1}])
def test_bodies_are_freed_as_soon_as_they_are_parsed(document: Any) -> None:
    """Also those of a refused request: TorchServe holds a batch until all of it is answered."""
    data = {"data": bytearray(json.dumps(document).encode()), "x": bytearray(b"PNG")}
    pending = ScriptedDispatcher(Inbox()).intake(Profile.SEQUENCE).take("r", data, HTTP)
    assert data == {"data": b"", "x": b""}
    assert pending.num_bytes > 3


@pytest.mark.parametrize("session", ["", "another"])
def test_a_refused_request_is_freed_without_a_collection(session: str) -> None:
    """Its error keeps no body, nor what was parsed of it: a collection may be many large bodies away."""
    intake = ScriptedDispatcher(Inbox()).intake(Profile.CONTINUOUS)
    document = {"prompt": "hi", "session_id": "s"} if session else {"prompt": 1}
    headers = {**HTTP, "ts_request_sequence_id": session}
    intake.take("first", body(document), headers)  # caches are filled
    gc.collect()
    intake.take("r", body(document), headers)
    assert not gc.collect()


def test_a_token_in_a_grpc_message_is_no_unknown_input() -> None:
    """A client may send one to a server that asks for none."""
    dispatcher = ScriptedDispatcher(Inbox())
    data = {"data": b'{"type": "hello"}', "authorization": b"Bearer x"}
    dispatcher.intake(Profile.CONTINUOUS).take("r", data, {})
    assert dispatcher.submitted["r"].principal is None


def test_a_pulled_prompt_and_an_opening_one_are_marked() -> None:
    """Over gRPC, in the continuous profile."""
    dispatcher = ScriptedDispatcher(Inbox())
    dispatcher.intake(Profile.CONTINUOUS).take("r", {"data": b'{"prompt": "hi"}'}, {})
    assert dispatcher.submitted["r"].pull
    assert dispatcher.submitted["r"].creates_session


def test_a_server_that_drains_refuses_openings_and_marks_the_rest() -> None:
    """Only an engine can tell if a step begins a sequence."""
    inbox = Inbox()
    dispatcher = ScriptedDispatcher(inbox)
    intake = dispatcher.intake(Profile.CONTINUOUS)
    intake.refuse_sessions(EngineUnavailable("drains"))
    intake.take("opens", body({"prompt": "hi"}), HTTP)
    assert inbox.take("opens")[0].status == 503
    intake.take("goes on", body({"prompt": "hi", "session_id": "s"}), HTTP)
    assert not dispatcher.submitted["goes on"].may_begin
    intake.refuse_sessions(None)
    intake.take("later", body({"prompt": "hi"}), HTTP)
    assert dispatcher.submitted["later"].may_begin


def test_a_description_is_asked_of_the_dispatcher() -> None:
    """It comes from the management API and has no body."""
    inbox = Inbox()
    dispatcher = ScriptedDispatcher(inbox)
    pending = dispatcher.intake(Profile.ASYNC).take("r", {}, {"describe": "True", "Host": "x"})
    assert pending.kind is ClientKind.DESCRIBE
    assert json.loads(inbox.take("r")[0].body) == {"described": True}


def test_an_id_is_minted_once() -> None:
    """A client that sends it back means its session, also with a start header of its own."""
    dispatcher = ScriptedDispatcher(Inbox())
    intake = dispatcher.intake(Profile.SEQUENCE, minting=True)
    headers = {**HTTP, ID: "ts-seq-0b9fd3a0", START: "true"}
    intake.take("a", body({"prompt": "hi"}), headers)
    intake.take("b", body({"prompt": "and"}), headers)
    opened, asked = dispatcher.submitted["a"], dispatcher.submitted["b"]
    assert (opened.creates_session, asked.creates_session) == (True, False)
    assert opened.command.session_id == asked.command.session_id == "ts-seq-0b9fd3a0"


def test_what_needs_no_engine_is_answered_at_once() -> None:
    """The dispatcher does not get it."""
    inbox = Inbox()
    dispatcher = ScriptedDispatcher(inbox)
    intake = dispatcher.intake(Profile.CONTINUOUS)
    pending = intake.take("r", {"body": b""}, {**HTTP, "url_path": "v1/models"})
    pending.add(inbox.take("r"))
    response = pending.next()
    assert response is not None
    assert json.loads(response.body)["object"] == "list"
    assert not dispatcher.submitted


def test_an_error_is_in_the_dialect_of_the_request() -> None:
    """Also where not even its body can be read."""
    inbox = Inbox()
    intake = ScriptedDispatcher(inbox).intake(Profile.CONTINUOUS)
    for data, path, form in (
        (b'{"inputs": 1}', "", {"error", "code"}),
        (b"{", "v1/chat/completions", {"error"}),
    ):
        pending = intake.take("r", {"body": data}, {**HTTP, "url_path": path})
        pending.add(inbox.take("r"))
        response = pending.next()
        assert response is not None
        assert response.status == 400
        assert json.loads(response.body).keys() == form
        assert "retryable" not in response.body.decode()


def test_an_independent_prompt_has_no_session_header() -> None:
    """From the first response on."""
    dispatcher = ScriptedDispatcher(Inbox())
    pending = dispatcher.intake(Profile.CONTINUOUS).take("r", body({"inputs": "hi"}), HTTP)
    assert dispatcher.submitted["r"].ephemeral
    assert not pending.names_session


def test_a_refused_request_gets_its_error_as_last_event() -> None:
    """The dispatcher does not get it."""
    inbox = Inbox()
    dispatcher = ScriptedDispatcher(inbox)
    dispatcher.intake(Profile.CONTINUOUS).take("r", body({"prompt": 1}), HTTP)
    (event,) = inbox.take("r")
    assert event.status == 400
    assert json.loads(event.body)["error"]["field"] == "prompt"
    assert not dispatcher.submitted


def test_a_defect_becomes_the_rows_answer_with_an_id_that_the_log_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a trace, but without the exception's text: it may quote the prompt, and start a line of its own."""

    def broken(submitted: Submit) -> Sequence[Event]:
        raise RuntimeError(_SECRET)

    inbox = Inbox()
    ScriptedDispatcher(inbox, broken).intake(Profile.CONTINUOUS).take(
        "r", body({"prompt": _SECRET}), HTTP
    )
    (event,) = inbox.take("r")
    assert event.status == 500
    message = json.loads(event.body)["error"]["message"]
    assert "RuntimeError" in caplog.text
    assert "in broken" in caplog.text
    assert message.split()[2].rstrip(";") in caplog.text
    assert _SECRET not in caplog.text.replace("raise RuntimeError(_SECRET)", "")
    assert "METRICS" not in caplog.text


def test_logs_have_hashes_sizes_and_durations(caplog: pytest.LogCaptureFixture) -> None:
    """Never an id in full, never a prompt."""
    caplog.set_level(logging.DEBUG)
    dispatcher = ScriptedDispatcher(Inbox())
    intake = dispatcher.intake(Profile.CONTINUOUS)
    pending = intake.take("request-1", body({"prompt": _SECRET}), HTTP)
    intake.finish(pending)
    intake.drop(pending)
    assert "1000.0 ms" in caplog.text
    assert "request-1" not in caplog.text
    assert "embarrassing" not in caplog.text


def test_a_finished_or_dropped_row_leaves_nothing_behind() -> None:
    """The dispatcher drops the request of a disconnected client, and no other."""
    inbox = Inbox()
    dispatcher = ScriptedDispatcher(inbox)
    intake = dispatcher.intake(Profile.CONTINUOUS)
    pending = [intake.take(request_id, body({"prompt": "hi"}), HTTP) for request_id in "ab"]
    assert len(inbox) == 2
    intake.finish(pending[0])
    intake.drop(pending[1])
    assert len(inbox) == 0
    assert dispatcher.dropped == ["b"]


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        ({"inputs": [{"name": "x", "data": [1]}]}, {}),
        ({"inputs": [{"name": "x"}]}, {"Inference-Header-Content-Length": "5"}),
    ],
)
def test_a_model_that_talks_has_no_tensors(data: Any, headers: dict[str, str]) -> None:
    """Triton's clients get a text that says so."""
    inbox = Inbox()
    kserve = {"host": "localhost", "explain": "False", **headers}
    pending = ScriptedDispatcher(inbox).intake(Profile.CONTINUOUS).take("r", body(data), kserve)
    pending.add(inbox.take("r"))
    response = pending.next()
    assert response is not None
    assert response.status == 400
    assert "no tensors" in json.loads(response.body)["error"]


def test_a_path_of_kserve_takes_prompts() -> None:
    """And their errors are this package's own."""
    dispatcher = ScriptedDispatcher(Inbox())
    kserve = {"host": "localhost", "explain": "False"}
    dispatcher.intake(Profile.CONTINUOUS).take("r", body({"prompt": "hi"}), kserve)
    assert isinstance(dispatcher.submitted["r"].command, Prompt)
