"""Steps as they come from TorchServe: JSON, raw bodies, forms, gRPC inputs, and flags of the sequence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.state_harness import state_settings
from ts_stateful.frontend.dialects.served_model import UnknownPath
from ts_stateful.frontend.parsing.headers import HeaderNames, RequestHeaders
from ts_stateful.frontend.parsing.steps import StepParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.protocol.errors import InvalidRequest, SessionIdMismatch, StatefulError
from ts_stateful.protocol.events import Encoding, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Info, Step

HTTP = {"host": "localhost", "url_path": ""}
NAMES = HeaderNames(
    "ts_request_sequence_id",
    "ts_request_sequence_end",
    frozenset({"ts_request_sequence_id"}),
    frozenset({"ts_request_sequence_start"}),
    frozenset({"ts_request_sequence_end"}),
)
ONE = b'{"inputs": [{"name": "x", "data": [1]}]}'


def parse(
    data: dict[str, Any], headers: dict[str, str] | None = None, raw: str | None = "text"
) -> Submit:
    """Return the message to the engine."""
    settings = state_settings(
        inputs=[{"name": "x", "datatype": "INT16", "shape": [-1], "raw": raw}],
        outputs=[{"name": "y", "shape": [1]}],
        states=[{"name": "h", "shape": [1]}],
    )
    parser = StepParser(Profile.CONTINUOUS, NAMES, settings)
    pending = PendingResponse("r", ClientKind.HTTP, NAMES)
    return parser.parse(pending, data, RequestHeaders.read(headers or {}, NAMES, minting=False))


def step(*arguments: Any, **options: Any) -> Step:
    """Return the command of a step."""
    command = parse(*arguments, **options).command
    assert isinstance(command, Step)
    return command


@pytest.mark.parametrize(
    ("data", "headers", "raw", "whole"),
    [
        ({"body": ONE}, {**HTTP, "Content-Type": "application/json"}, "text", False),
        ({"body": ONE}, HTTP, "text", False),
        ({"data": ONE}, {}, "text", False),
        ({"body": b"1"}, HTTP, "text", True),
        ({"body": b"1"}, {**HTTP, "content-type": "text/plain; charset=utf-8"}, "text", True),
        ({"data": b"1"}, {}, "text", True),
        ({"body": b"\1\0"}, {**HTTP, "Content-Type": "audio/l16"}, "pcm16", True),
        (
            {"data": b"{}", "x": b"\1\0"},
            {**HTTP, "Content-Type": "multipart/form-data"},
            "pcm16",
            False,
        ),
        ({"x": b"\1\0"}, {}, "pcm16", True),
        ({"x": b"\1\0", "data": b"{}"}, {}, "pcm16", False),
        ({"data": ONE}, {}, "pcm16", False),
    ],
)
def test_the_same_step_in_many_forms(
    data: dict[str, Any], headers: dict[str, str], raw: str, whole: bool
) -> None:
    """A body that is the input itself is answered in kind."""
    message = parse(data, headers, raw)
    assert isinstance(message.command, Step)
    assert (message.attachments, message.shapes) == ((b"\1\0",), ((1,),))
    assert message.encoding is (Encoding.RAW if whole else Encoding.JSON)
    assert message.command.session_id is not None
    assert message.creates_session


@pytest.mark.parametrize(
    ("data", "headers", "flags"),
    [
        ({"body": b"1"}, {**HTTP, "TS_REQUEST_SEQUENCE_START": "true"}, (True, False)),
        ({"body": b"1"}, {**HTTP, "ts_request_sequence_end": "True"}, (False, True)),
        ({"data": b"1", "ts_request_sequence_end": b"true"}, {}, (False, True)),
        ({"data": b"1"}, {"ts_request_sequence_end": "true"}, (False, False)),  # TorchServe's own
        ({"data": b'{"start": true, ' + ONE[1:]}, {}, (True, False)),
        ({"data": b'{"parameters": {"sequence_end": true}, ' + ONE[1:]}, {}, (False, True)),
    ],
)
def test_start_and_end(
    data: dict[str, Any], headers: dict[str, str], flags: tuple[bool, bool]
) -> None:
    """In the body, beside it, and in Triton's parameters."""
    made = step(data, headers)
    assert (made.start, made.end) == flags


def test_the_session_of_a_step() -> None:
    """By header, body, or Triton's parameter; they must agree."""
    named = {**HTTP, "ts_request_sequence_id": "7"}
    by_parameter = b'{"parameters": {"sequence_id": 7}, ' + ONE[1:]
    assert step({"body": b"1"}, named).session_id == "7"
    assert step({"data": by_parameter}).session_id == "7"
    assert step({"body": by_parameter}, named).session_id == "7"
    assert not parse({"body": b"1"}, named).creates_session
    with pytest.raises(SessionIdMismatch):
        parse({"body": by_parameter}, {**named, "ts_request_sequence_id": "8"})
    with pytest.raises(SessionIdMismatch):
        parse({"data": b'{"session_id": "8", ' + by_parameter[1:]})
    info = parse({"data": b'{"type": "info"}'}, {"ts_request_sequence_id": "7"}).command
    assert info == Info(session_id="7")


@pytest.mark.parametrize(
    ("data", "headers", "raw", "expected"),
    [
        ({}, HTTP, "text", "text/plain"),
        ({"1": ""}, HTTP, "text", "text/plain"),
        ({}, HTTP, None, "application/json"),
        ({"body": b"1"}, HTTP, None, "JSON"),
        ({"body": b"\1\0"}, HTTP, "pcm16", "not"),
        ({"body": b"1", "y": b"1"}, HTTP, "text", "not an input"),
        ({"data": b"1", "y": b"1"}, {}, "text", "unknown input"),
        ({"x": b"1", "data": ONE}, {}, "text", "sent twice"),
        ({"x": b"1", "data": b'{"type": "info", "session_id": "a"}'}, {}, "text", "only `step`"),
        ({"data": b'{"outputs": [{"name": "z"}], ' + ONE[1:]}, {}, "text", "it has y"),
        ({"data": b'{"inputs": []}'}, {}, "text", "input x is missing"),
        ({"data": b'{"prompt": "Hi", "inputs": []}'}, {}, "text", "unknown field"),
    ],
)
def test_what_is_no_step_is_refused(
    data: dict[str, Any], headers: dict[str, str], raw: str | None, expected: str
) -> None:
    """And the message has the remedy."""
    with pytest.raises(InvalidRequest) as error:
        parse(data, headers, raw)
    assert expected in error.value.message
    assert isinstance(error.value, StatefulError)


def test_openais_paths_have_no_steps() -> None:
    """Its clients would not understand the answer, and get an error that they do."""
    with pytest.raises(UnknownPath, match="takes steps"):
        parse({"body": ONE}, {**HTTP, "url_path": "v1/chat/completions"})
