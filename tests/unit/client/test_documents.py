"""Documents, images and events in both directions."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.client import MAX_BODY_BYTES, ProtocolError, RequestTooLarge, ServerRefused
from ts_stateful.client.documents import check_size, encode, is_last, parse, refusal
from ts_stateful.client.images import wire_audio, wire_images
from ts_stateful.client.transports.sse import EventParser
from ts_stateful.protocol.answers import TurnAnswer
from ts_stateful.protocol.errors import InvalidRequest, QueueFull, SessionNotFound, StatefulError
from ts_stateful.protocol.requests import Hello, Image, Open, Prompt, parse_request
from ts_stateful.protocol.strict_json import parse_json


def test_requests_are_what_the_server_parses() -> None:
    """A request survives the way to the server unchanged."""
    prompt = Prompt(session_id="s", prompt="né 🙂", images=(Image(url="https://a/b"),), turn=3)
    assert parse_request(parse_json(encode(prompt))) == prompt
    assert encode(Hello()) == b'{"type":"hello"}'


def test_an_answer_is_typed() -> None:
    """Unknown fields of a newer server are no obstacle."""
    answer = parse(b'{"text": "\\ud83d\\ude42", "more": true, "next": 1, "new": 1}', TurnAnswer)
    assert (answer.text, answer.more, answer.next) == ("🙂", True, 1)


def test_an_error_in_an_answer_is_raised() -> None:
    """The server's error is raised as the class of its code, with all its fields."""
    body = b'{"error": {"code": "queue_full", "message": "full", "retry_after_s": 2.5}}'
    with pytest.raises(QueueFull, match="full") as caught:
        parse(body, TurnAnswer)
    assert caught.value.retry_after_s == 2.5


def test_an_unknown_error_keeps_its_code() -> None:
    """An error of a newer server is still an error of the protocol."""
    with pytest.raises(StatefulError, match="brand_new: sorry"):
        parse(b'{"error": {"code": "brand_new", "message": "sorry"}}', TurnAnswer)


def test_an_answer_about_another_session_is_none() -> None:
    """Answers of a connection that others read, too, are not taken for one another."""
    body = b'{"text": "", "session_id": "b"}'
    assert parse(body, TurnAnswer, "b").session_id == "b"
    with pytest.raises(ProtocolError, match="another session than a"):
        parse(body, TurnAnswer, "a")


@pytest.mark.parametrize("value", ["\ud800", object()])
def test_what_json_cannot_carry_is_an_invalid_request(value: Any) -> None:
    """The error names the field."""
    with pytest.raises(InvalidRequest, match="`system` cannot be sent") as caught:
        encode(Open(system=value))
    assert caught.value.field == "system"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff", b"{}", b'{"text": 1}'])
def test_anything_else_is_no_answer(body: bytes) -> None:
    """A body that is neither an answer nor an error is a protocol error."""
    with pytest.raises(ProtocolError):
        parse(body, TurnAnswer)


def test_a_refusal_of_any_program_is_read() -> None:
    """This protocol's error, TorchServe's own and a proxy's page each become a clear exception."""
    ours = refusal(404, b'{"error": {"code": "session_not_found", "message": "no"}}')
    assert isinstance(ours, SessionNotFound)
    theirs = refusal(404, b'{"code": 404, "type": "ModelNotFoundException", "message": "no m"}')
    assert isinstance(theirs, ServerRefused)
    assert (theirs.status, theirs.kind, theirs.message) == (
        404,
        "ModelNotFoundException",
        "no m (status 404)",
    )
    page = refusal(503, b"<h1>\n busy</h1>" + b"x" * 10_000)
    assert isinstance(page, ServerRefused)
    assert page.retryable
    assert "busy" in page.message
    assert len(page.message) < 500
    assert page.retry_after_s is None
    assert getattr(refusal(503, b"busy", "7"), "retry_after_s", None) == 7
    date = refusal(503, b"busy", "Wed, 21 Oct 2026 07:28:00 GMT")
    assert getattr(date, "retry_after_s", 0) is None
    assert "no message" in str(refusal(500, b""))


def test_the_last_event_has_more_than_text() -> None:
    """An event of nothing but text is followed by others."""
    assert not is_last(b'{"text": "a"}')
    assert is_last(b'{"text": "a", "finish_reason": "stop"}')
    assert is_last(b'{"error": {}}')
    assert is_last(b"rubbish")


def test_images_are_paths_urls_or_bytes(tmp_path: Path) -> None:
    """Files and bytes travel as base64, URLs as they are."""
    path = tmp_path / "a.png"
    path.write_bytes(b"image")
    encoded = Image(base64=base64.b64encode(b"image").decode())
    assert wire_images([path, str(path), b"image", memoryview(b"image")]) == (encoded,) * 4
    urls = ["https://example.com/a.png", "data:image/png;base64,AAAA", "s3://bucket/a.png"]
    assert wire_images(urls) == tuple(Image(url=url) for url in urls)


def test_a_missing_file_is_an_os_error() -> None:
    """A path that does not exist is named before anything is sent."""
    with pytest.raises(FileNotFoundError):
        wire_images(["no/such/file.png"])


def test_one_image_instead_of_a_list_is_refused() -> None:
    """A lone string would be taken for a list of letters."""
    with pytest.raises(TypeError, match=r"images=\[\.\.\.\]"):
        wire_images("scene.png")
    with pytest.raises(TypeError, match=r"audio=\[\.\.\.\]"):
        wire_audio("scene.wav")


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """No server takes a file of such a size, not even in parts."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RequestTooLarge, match="sparse has more than"):
        wire_images([path])


def test_the_limit_itself_fits() -> None:
    """A request of exactly the limit is sent."""
    check_size(MAX_BODY_BYTES, MAX_BODY_BYTES)
    with pytest.raises(RequestTooLarge):
        check_size(MAX_BODY_BYTES + 1, MAX_BODY_BYTES)


@given(st.lists(st.text(alphabet="ab\u2028\x85\x1c🙂", min_size=1), max_size=4), st.data())
def test_events_survive_any_cut(texts: list[str], data: st.DataObject) -> None:
    """Events are the same wherever the network cuts them, whatever Python takes for ends of lines."""
    stream = b": hello\r\n\r\n" + b"".join(
        b"event: x\ndata: " + text.encode() + b"\n\n" for text in texts
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    parser = EventParser()
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [e.decode() for part in parts for e in parser.feed(part)] == texts


def test_an_event_of_several_lines_is_one() -> None:
    """Data lines of one event are joined, with either end of line; an unfinished event is not given."""
    parser = EventParser()
    assert list(parser.feed(b"data:a\r\ndata: b\r\n\r\ndata: half\n")) == [b"a\nb"]
