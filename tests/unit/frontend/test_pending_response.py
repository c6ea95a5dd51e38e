"""The next response to one request."""

from __future__ import annotations

import pytest

from tests.support.fake_dispatcher import EXPIRES, ID, NAMES, UNTIL, accepted, last, part, refused
from ts_stateful.frontend.dialects.dialect import Responder, Whole
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse, Response
from ts_stateful.protocol.events import Event

_JSON, _SSE = "application/json", "text/event-stream"
_UNBUFFERED = {"X-Accel-Buffering": "no"}  # else nginx keeps a stream back


def pending(kind: ClientKind = ClientKind.HTTP, *, streams: bool = False) -> PendingResponse:
    it = PendingResponse("r", kind, NAMES)
    it.streams = streams
    return it


def test_nothing_has_happened_nothing_is_sent() -> None:
    """Neither a status nor a byte."""
    for kind in ClientKind:
        assert pending(kind).next(hold=True) is None


def test_an_answer_over_http_is_one_whole_response() -> None:
    """With its status, and without a word about more."""
    it = pending()
    it.add([accepted("r"), last("r", {"a": 1}, session_id="s", opened_until=UNTIL)])
    assert it.next() == Response(b'{"a": 1}', None, 200, _JSON, {ID: f"s; {EXPIRES}"})
    assert it.done
    assert it.next(hold=True) is None


def test_an_error_has_its_status_and_the_time_to_try_again() -> None:
    """As long as nothing was sent, streamed or not, even after parts."""
    for streams in (False, True):
        it = pending(streams=streams)
        it.add([accepted("r"), part("r", "x"), refused("r", 429, retry_after_s=1.2)])
        response = it.next()
        assert response is not None
        assert (response.status, response.more, response.content_type) == (429, None, _JSON)
        assert response.headers == {"Retry-After": "2"}


@pytest.mark.parametrize(("status", "after"), [(503, None), (404, 5.0)])
def test_retry_after_is_only_sent_where_it_is_known_and_helps(
    status: int, after: float | None
) -> None:
    """A missing session does not come back."""
    it = pending()
    it.add([refused("r", status, retry_after_s=after)])
    response = it.next()
    assert response is not None
    assert response.headers == {}


def test_an_accepted_answer_is_held_open_only_where_that_helps() -> None:
    """With `hold`, headers go out and then nothing, again and again; without, nothing goes out yet."""
    it = pending()
    it.add([accepted("r", session_id="s")])
    assert it.next() is None
    assert it.next(hold=True) == Response(b"", True, 200, _JSON, {ID: "s"})
    assert it.next() is None
    assert it.next(hold=True) == Response(b"", True)
    it.add([last("r", {"a": 1}, session_id="s")])
    assert it.next(hold=True) == Response(b'{"a": 1}', False)


def test_a_stream_over_http_is_server_sent_events() -> None:
    """Headers with the acceptance, what has come since in one response, the last event at the end."""
    it = pending(streams=True)
    it.add([accepted("r", session_id="s")])
    assert it.next() == Response(b"", True, 200, _SSE, {ID: "s"} | _UNBUFFERED)
    it.add([part("r", "a"), part("r", "b")])
    assert it.next() == Response(b'data: {"text": "a"}\n\ndata: {"text": "b"}\n\n', True)
    assert it.next() is None
    it.add([part("r", "c"), last("r", {"text": ""})])
    assert it.next() == Response(b'data: {"text": "c"}\n\ndata: {"text": ""}\n\n', False)


def test_a_stream_that_is_over_at_once_is_still_events() -> None:
    """A replayed turn, for instance."""
    it = pending(streams=True)
    it.add([part("r", "a"), last("r", {"text": ""}, session_id="s")])
    body = b'data: {"text": "a"}\n\ndata: {"text": ""}\n\n'
    assert it.next() == Response(body, None, 200, _SSE, {ID: "s"})


def test_an_error_in_a_stream_is_its_last_event() -> None:
    """The status was sent long before."""
    it = pending(streams=True)
    it.add([part("r", "a")])
    it.next()
    it.add([refused("r", 507)])
    response = it.next()
    assert response is not None
    assert response.body.startswith(b'data: {"error"')
    assert (response.more, response.status) == (False, 200)
    assert it.status == 200


def test_an_error_after_a_held_status_is_the_body() -> None:
    """The same, unstreamed."""
    it = pending()
    it.add([accepted("r")])
    it.next(hold=True)
    it.add([refused("r", 507)])
    response = it.next()
    assert response is not None
    assert response.body.startswith(b'{"error"')
    assert response.more is False


def test_over_grpc_an_event_is_a_message() -> None:
    """The acceptance is none, and the last one is marked."""
    it = pending(ClientKind.GRPC, streams=True)
    it.add([accepted("r"), part("r", "a"), part("r", "b"), last("r", {"text": "c"})])
    responses = [it.next(hold=True) for _ in range(4)]
    assert [response and response.body for response in responses] == [
        b'{"text": "a"}',
        b'{"text": "b"}',
        b'{"text": "c"}',
        None,
    ]
    assert [response and response.more for response in responses] == [True, True, False, None]


@pytest.mark.parametrize("kind", [ClientKind.GRPC, ClientKind.DESCRIBE])
def test_one_message_is_marked_as_the_last(kind: ClientKind) -> None:
    """Without that a gRPC reply kills the worker."""
    it = pending(kind)
    it.add([part("r", "unasked"), last("r", {"a": 1})])
    assert it.next() == Response(b'{"a": 1}', False, 200, _JSON)


def test_beginning_settles_the_status() -> None:
    """For a row that has to go on before there is any news."""
    it = pending()
    assert it.begin() == Response(b"", True, 200, _JSON, {})
    assert it.begin() == Response(b"", True)
    known = pending(streams=True)
    known.add([accepted("r", session_id="s")])
    assert known.next() is not None
    assert known.begin() == Response(b"", True)
    assert pending(ClientKind.GRPC).begin() == Response(b"", True)
    assert pending(ClientKind.GRPC, streams=True).begin() == Response(b'{"text":""}', True)


def test_the_sent_bytes_are_counted() -> None:
    """For the log."""
    it = pending()
    it.add([refused("r", 404)])
    response = it.next()
    assert response is not None
    assert (it.status, it.num_sent) == (404, len(response.body))


class _Loud(Responder):
    """A responder of its own."""

    stream_type = "text/loud"
    idle = b"..."

    def whole(self, event: Event) -> Whole:
        return Whole(418 if event.status != 200 else 200, event.body.upper(), "text/whole")

    def piece(self, event: Event) -> bytes:
        return event.body.upper() + b"!"


def loud(kind: ClientKind = ClientKind.HTTP, *, streams: bool = False) -> PendingResponse:
    it = pending(kind, streams=streams)
    it.responder = _Loud()
    return it


def test_everything_is_written_by_the_responder() -> None:
    """Whole answers, errors with a status of their own, streams, and messages without news."""
    whole = loud()
    whole.add([last("r", {"a": 1})])
    assert whole.next() == Response(b'{"A": 1}', None, 200, "text/whole", {})
    failed = loud(streams=True)
    failed.add([refused("r", 503, retry_after_s=1.0)])
    response = failed.next()
    assert response is not None
    assert (response.status, response.headers) == (418, {"Retry-After": "1"})
    stream = loud(streams=True)
    stream.add([accepted("r"), part("r", "a")])
    assert stream.next() == Response(b'{"TEXT": "A"}!', True, 200, "text/loud", _UNBUFFERED)
    stream.add([refused("r", 503)])
    response = stream.next()
    assert response is not None
    assert response.body.endswith(b"!")
    silent = loud(ClientKind.GRPC, streams=True)
    assert silent.begin() == Response(b"...", True)
    silent.add([last("r", {"text": "b"})])
    response = silent.next()
    assert response is not None
    assert response.body == b'{"TEXT": "B"}!'


def test_a_session_that_ends_with_the_answer_is_in_no_header() -> None:
    """No client could use it."""
    for streams in (False, True):
        it = pending(streams=streams)
        it.names_session = False
        it.add([accepted("r", session_id="s", opened_until=UNTIL)])
        first = it.next(hold=True)
        assert first is not None
        assert first.headers == (_UNBUFFERED if streams else {})
