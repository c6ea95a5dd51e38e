"""Requests to a language model: sessions, seeds and profiles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_dispatcher import ID, NAMES, START, FixedSeeds
from tests.support.fake_torchserve import HTTP
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.protocol.errors import InvalidRequest, SessionIdMismatch, StatefulError
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import (
    Cancel,
    Close,
    Continue,
    Fork,
    Hello,
    Info,
    Open,
    Prompt,
    Rewind,
    Step,
    Upload,
)

_MINTED = "ts-seq-0b9fd3a0-7e4e-4d5c-8b0e-0f0f0f0f0f0f"


def parse(
    data: dict[str, Any],
    headers: dict[str, Any] | None = None,
    profile: Profile = Profile.CONTINUOUS,
) -> Submit:
    parser = RequestParser(profile, NAMES, rng=FixedSeeds())
    minting = profile is Profile.SEQUENCE
    read = RequestHeaders.read(HTTP if headers is None else headers, NAMES, minting=minting)
    message = parser.parse(PendingResponse("r", ClientKind.HTTP, NAMES), data, read)
    assert isinstance(message, Submit)
    return message


def http(document: Any, **headers: str) -> Submit:
    return parse({"body": json.dumps(document).encode()}, {**HTTP, **headers})


def grpc(document: Any, profile: Profile = Profile.CONTINUOUS, **inputs: bytes) -> Submit:
    return parse({"data": json.dumps(document).encode(), **inputs}, {}, profile)


def field_of(refusal: pytest.ExceptionInfo[StatefulError]) -> str | None:
    return refusal.value.field


@pytest.mark.parametrize(
    "fields",
    [{"inputs": [{"name": "x", "data": [10**30]}]}, {"parameters": {"sequence_id": 10**30}}],
)
def test_a_step_is_passed_on_without_unchecked_values(fields: dict[str, Any]) -> None:
    """A language engine refuses it; a value that msgpack cannot encode would cost the connection."""
    command = http({"type": "step", "session_id": "a", "start": True, **fields}).command
    assert command == Step(session_id="a")


@pytest.mark.parametrize(
    "document", [{"prompt": "a", "nonsense": 1}, {"prompt": "a", "session_id": 1}, {"type": "sing"}]
)
def test_what_is_not_a_request_is_refused(document: Any) -> None:
    """By its fields, their types, or its own type."""
    with pytest.raises(InvalidRequest):
        parse({"body": json.dumps(document).encode()})


def test_a_part_of_an_upload_may_be_the_file_of_a_form() -> None:
    """Its bytes are a third less than in base64."""
    document = f'{{"type": "upload", "session_id": "a", "sha256": "{"0" * 64}"}}'
    message = parse({"data": document.encode(), "file": bytearray(b"part")})
    assert (message.command, message.attachments) == (
        Upload(session_id="a", sha256="0" * 64),
        (b"part",),
    )


def test_files_go_with_what_takes_images() -> None:
    """A file beside anything else would be ignored."""
    data = {"data": b'{"type": "info", "session_id": "a"}', "x": b"PNG"}
    with pytest.raises(InvalidRequest, match="files"):
        parse(data)


@pytest.mark.parametrize("header", [None, "", "NEW_SESSION"])
@pytest.mark.parametrize("document", [{"prompt": "hi"}, {"type": "open"}])
def test_without_an_id_a_session_is_opened(header: str | None, document: Any) -> None:
    """By `open` and by a prompt, under an id that cannot be guessed."""
    parsed = http(document, **({} if header is None else {ID: header}))
    assert parsed.creates_session
    assert parsed.command.session_id is not None
    assert len(parsed.command.session_id) == 32
    assert parsed.command.session_id != http(document).command.session_id


def test_open_may_name_the_id() -> None:
    """The engine refuses it if it is live."""
    parsed = http({"type": "open", "session_id": "mine"})
    assert (parsed.command, parsed.creates_session) == (Open(session_id="mine"), True)


def test_a_prompt_with_an_id_does_not_open() -> None:
    """An id that was never opened is a 404, not a new session."""
    parsed = http({"prompt": "hi"}, **{ID: "a"})
    assert (parsed.command, parsed.creates_session) == (Prompt(prompt="hi", session_id="a"), False)


def test_header_and_body_have_to_agree() -> None:
    """Else the request could end in another session than the client believes."""
    assert http({"prompt": "hi", "session_id": "a"}, **{ID: "a"}).command.session_id == "a"
    with pytest.raises(SessionIdMismatch):
        http({"prompt": "hi", "session_id": "b"}, **{ID: "a"})


@pytest.mark.parametrize(
    "session_id", ["a;b", "a/../b", "a\r\nb", "é", " ", "a" * 227, ".", "..", "a..b"]
)
def test_an_id_of_a_wrong_form_is_refused(session_id: str) -> None:
    """In the header and in the body; such an id could end in a response header."""
    with pytest.raises(InvalidRequest):
        http({"prompt": "hi", "session_id": session_id})
    if session_id.strip():
        with pytest.raises(InvalidRequest):
            http({"prompt": "hi"}, **{ID: session_id})


@pytest.mark.parametrize(
    ("document", "command"),
    [
        ({"type": "cancel"}, Cancel),
        ({"type": "close"}, Close),
        ({"type": "info"}, Info),
        ({"type": "continue", "turn": 1}, Continue),
        ({"type": "rewind", "to_turn": 1}, Rewind),
    ],
)
def test_other_requests_need_an_id(document: Any, command: type) -> None:
    """And never open."""
    parsed = http(document, **{ID: "a"})
    assert isinstance(parsed.command, command)
    assert not parsed.creates_session
    with pytest.raises(InvalidRequest) as refusal:
        http(document)
    assert field_of(refusal) == "session_id"


@pytest.mark.parametrize("asked", [None, "", "NEW_SESSION", "mine"])
def test_a_fork_names_two_sessions(asked: str | None) -> None:
    """The source as always, and a new one, under the client's id or one that cannot be guessed."""
    parsed = http({"type": "fork", "new_session_id": asked}, **{ID: "a"})
    assert isinstance(parsed.command, Fork)
    assert parsed.creates_session
    assert parsed.command.session_id == "a"
    made = parsed.command.new_session_id
    assert made == "mine" if asked == "mine" else made is not None and len(made) == 32


def test_a_fork_needs_a_source_and_good_ids() -> None:
    """Each is refused by the name of its field."""
    for document, field in (
        ({"type": "fork"}, "session_id"),
        ({"type": "fork", "session_id": "a", "new_session_id": "a;b"}, "new_session_id"),
        ({"type": "fork", "session_id": "a;b", "new_session_id": "b"}, "session_id"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            http(document)
        assert field_of(refusal) == field


def test_a_fork_uses_the_id_that_the_frontend_made() -> None:
    """In the sequence profile a fork that names its source in the body alone has been given one already."""
    headers = {**HTTP, ID: _MINTED, START: "true"}
    body = {"body": b'{"type": "fork", "session_id": "a"}'}
    command = parse(body, headers, Profile.SEQUENCE).command
    assert command == Fork(session_id="a", new_session_id=_MINTED)


def test_hello_needs_no_id() -> None:
    """It is a client's first request."""
    assert http({"type": "hello"}).command == Hello()


def test_an_id_that_the_frontend_made_opens() -> None:
    """In the sequence profile a request without an id arrives with one."""
    headers = {**HTTP, ID: _MINTED, START: "true"}
    parsed = parse({"body": b'{"prompt": "hi"}'}, headers, Profile.SEQUENCE)
    assert (parsed.command.session_id, parsed.creates_session) == (_MINTED, True)
    named = parse({"body": b'{"type": "info", "session_id": "a"}'}, headers, Profile.SEQUENCE)
    assert (named.command.session_id, named.creates_session) == ("a", False)
    with pytest.raises(InvalidRequest):
        parse({"body": b'{"type": "info"}'}, headers, Profile.SEQUENCE)


def test_sampling_without_a_seed_gets_one() -> None:
    """A replay after an engine's death has to give the same text."""
    hot: Any = {"prompt": "hi", "temperature": 1, "session_id": "a"}
    for document, seed in ((hot, 7), ({**hot, "seed": 3}, 3), ({**hot, "temperature": 0}, None)):
        command = http(document).command
        assert isinstance(command, Prompt)
        assert command.seed == seed


def test_only_prompts_over_grpc_are_pulled_and_only_in_the_continuous_profile() -> None:
    """There a gRPC call gets one message, and holding it would stop all streams."""
    assert grpc({"prompt": "hi"}).pull
    assert grpc({"prompt": "hi", "stream": True}).pull
    assert not grpc({"type": "hello"}).pull
    assert not http({"prompt": "hi"}).pull
    assert not grpc({"prompt": "hi"}, Profile.SEQUENCE).pull


def test_only_a_streaming_call_is_streamed_in_the_async_profile() -> None:
    """A unary call that gets a second message takes the worker down."""
    document = {"prompt": "hi", "stream": True}
    assert grpc(document, Profile.ASYNC, rpc=b"StreamPredictions").streams
    unary = grpc(document, Profile.ASYNC)
    assert isinstance(unary.command, Prompt)
    assert (unary.streams, unary.command.stream) == (False, False)
    over_http = parse({"body": json.dumps(document).encode()}, HTTP, Profile.ASYNC)
    assert over_http.streams


def test_a_server_that_keeps_no_sessions_answers_every_prompt_for_itself() -> None:
    """It opens none; the engine refuses a request that names one."""
    parser = RequestParser(Profile.CONTINUOUS, NAMES, keeps_sessions=False)
    read = RequestHeaders.read(HTTP, NAMES, minting=False)

    def submit(document: Any, headers: RequestHeaders = read) -> Submit:
        key = "body" if headers.is_http else "data"
        pending = PendingResponse("r", ClientKind.HTTP, NAMES)
        message = parser.parse(pending, {key: json.dumps(document).encode()}, headers)
        assert isinstance(message, Submit)
        return message

    assert submit({"prompt": "hi"}).ephemeral
    named = submit({"prompt": "hi", "session_id": "s"})
    assert (named.creates_session, named.ephemeral) == (False, False)
    for document in ({"type": "open"}, {"type": "fork", "session_id": "s"}):
        with pytest.raises(InvalidRequest, match="keeps no sessions"):
            submit(document)
    with pytest.raises(InvalidRequest, match="over HTTP"):
        submit({"prompt": "hi"}, RequestHeaders.read({}, NAMES, minting=False))
