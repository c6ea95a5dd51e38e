"""Steps whose body is the input itself: no JSON to be written, none to be read."""

from __future__ import annotations

import struct
from collections.abc import Callable

import httpx
import pytest

from tests.e2e.speak import error_of
from tests.e2e.state_server import StateModels
from tests.e2e.steps import END, Lines, UnaryLine, new_id, number, post, sum_of

PROFILES = ["ledger", "ledger-async", "ledger-sequence"]
ENDS = {"ts_request_sequence_end": "true"}
STARTS = {"ts_request_sequence_start": "true"}

Send = Callable[..., httpx.Response]


@pytest.fixture(params=PROFILES)
def send(request: pytest.FixtureRequest, state_models: StateModels) -> Send:
    """HTTP to the ledger, in each profile in turn."""
    model = state_models.named(request.param)
    return lambda document=None, **options: post(state_models.server, model, document, **options)


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", ""])
def test_a_number_is_a_step(send: Send, content_type: str) -> None:
    """With a content type or, as curl -T sends it, without; the answer is a number too."""
    session = new_id()
    headers = {"Content-Type": content_type} if content_type else {}
    sums = [
        send(content=content, headers=headers, session=session)
        for content in (b"1", b"2\n", b" 3 ")
    ]
    assert [response.text for response in sums] == ["1", "3", "6"]
    assert sums[0].headers["content-type"].startswith("text/plain")
    assert sum_of(send(number(4, **END), session=session).json()) == 10


def test_put_is_post(state_models: StateModels) -> None:
    """It is what curl -T sends."""
    url = f"{state_models.server.http_url}/predictions/{state_models.named('ledger')}"
    headers = {"ts_request_sequence_id": new_id(), **ENDS}
    assert httpx.put(url, content=b"5", headers=headers, trust_env=False).text == "5"


@pytest.mark.parametrize("profile", ["ledger", "ledger-async"])
def test_headers_say_where_a_sequence_begins_and_ends(
    state_models: StateModels, profile: str
) -> None:
    """In the sequence profile they are TorchServe's own, and say other things."""
    server, model, session = state_models.server, state_models.named(profile), new_id()

    def step(content: bytes, **headers: str) -> httpx.Response:
        return post(server, model, content=content, headers=headers, session=session)

    assert step(b"1").text == "1"
    assert step(b"2", **STARTS).text == "2"
    ended = step(b"3", **ENDS)
    assert (ended.text, ended.headers["ts_request_sequence_end"]) == ("5", session)
    assert step(b"4", **ENDS).text == "4"


def test_a_form_has_json_beside_the_input(send: Send) -> None:
    """The part `data` is the step, the part with the input's name its bytes; the answer is JSON."""
    session = new_id()
    form = {"data": (None, '{"type": "step", "end": true}'), "number": (None, b"5")}
    answer = send(files=form, session=session).json()
    assert (sum_of(answer), answer["closed"]) == (5, True)
    form["digit"] = (None, b"5")
    assert error_of(send(files=form, session=session).json()) == ("invalid_request", 400)


@pytest.mark.parametrize("content", [b"one", b"1.5", b"1,2", b"", b"\xff", b"9" * 30])
def test_what_is_no_number_is_refused_as_json(send: Send, content: bytes) -> None:
    """Errors are documents whatever the body was."""
    session = new_id()
    headers = {"Content-Type": "text/plain"}
    assert send(content=b"7", headers=headers, session=session).text == "7"
    refused = send(content=content, headers=headers, session=session)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/json"
    assert error_of(refused.json()) == ("invalid_request", 400)
    assert sum_of(send(number(1, **END), session=session).json()) == 8


def test_grpc_takes_a_number_for_a_step(state_models: StateModels, lines: Lines) -> None:
    """Under `data`, or under the name of the input beside a JSON document."""
    line = lines.stream()
    line.send(b"1")
    line.send(b"2")
    line.send({"type": "step", "end": True}, number=b"3")
    assert [line.receive_raw().prediction for _ in range(2)] == [b"1", b"3"]
    answer = line.receive()
    assert (sum_of(answer), answer["closed"]) == (6, True)


def test_grpc_inputs_say_where_a_sequence_begins_and_ends(
    state_models: StateModels, lines: Lines
) -> None:
    """Under the names of the headers; on a stream and in unary calls."""
    true = {"ts_request_sequence_start": b"true"}, {"ts_request_sequence_end": b"true"}
    line = lines.stream()
    for number_, flags in ((b"1", {}), (b"2", true[0]), (b"3", true[1]), (b"4", {})):
        line.send(number_, **flags)
    assert [line.receive_raw().prediction for _ in range(4)] == [b"1", b"2", b"5", b"4"]
    unary = UnaryLine(state_models.server, state_models.named("ledger"), new_id())
    document = {"type": "step", "session_id": unary.session}
    assert sum_of(unary.call(document, number=b"1")) == 1
    assert sum_of(unary.call(document, number=b"2", **true[0])) == 2
    answer = unary.call(document, number=b"3", **true[1])
    assert (sum_of(answer), answer["closed"]) == (5, True)


def test_samples_are_a_step(state_models: StateModels) -> None:
    """16 bits each, of whatever type the body calls itself."""
    server, model, session = state_models.server, state_models.named("meter"), new_id()
    for content_type in ("audio/l16", "application/octet-stream"):
        samples = struct.pack("<3h", -32768, 0, 16384)
        headers = {"Content-Type": content_type}
        answer = post(server, model, content=samples, headers=headers, session=session).json()
        halves = next(output for output in answer["outputs"] if output["name"] == "halves")
        assert halves["data"] == [-0.5, 0.0, 0.25]
    odd = post(
        server, model, content=b"123", headers={"Content-Type": "audio/l16"}, session=session
    )
    assert error_of(odd.json()) == ("invalid_request", 400)
    post(server, model, {"type": "close"}, session=session)
