"""Requests to SageMaker's runtime API and its errors. Sessions over it are in `tests/scenarios/client`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from deploy.sagemaker.local.eventstream import MEDIA_TYPE, payload_part, stream_error
from deploy.sagemaker.local.server import ServiceLimits
from tests.support.fake_client import FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from tests.support.sagemaker import ENDPOINT, endpoint_of, serving
from ts_stateful.client import RequestTooLarge, Server, ServerRefused, ServerUnreachable, connect
from ts_stateful.protocol.errors import InvalidRequest, SessionNotFound
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES


@pytest.fixture
def fake() -> FakeSessions:
    """The sessions of an endpoint."""
    return FakeSessions(profile="sagemaker")


class Service:
    """A service with scripted answers, one per request; `seen` are the requests' paths, headers and bodies."""

    def __init__(self) -> None:
        self.answers: list[web.Response] = []
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.app = web.Application(client_max_size=10_000_000)
        self.app.router.add_post("/{path:.*}", self._answer)

    def answer(self, status: int, document: Any, error: str | None = None) -> None:
        """Give this answer to the next request."""
        headers = {} if error is None else {"x-amzn-ErrorType": error}
        self.answers.append(web.json_response(document, status=status, headers=headers))

    async def _answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.path, headers, await request.read()))
        return self.answers.pop(0)


@pytest.fixture
def service() -> Service:
    """A service without a router."""
    return Service()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    """Its URL."""
    with serving(service.app) as (url,):
        yield f"sagemaker://{ENDPOINT}?endpoint_url={url}"


@pytest.fixture
def server(url: str, time: FakeTime) -> Iterator[Server]:
    """A connection to it."""
    with connect(url, policy=time.policy()) as server:
        yield server


def test_the_service_gets_session_ids(fake: FakeSessions, time: FakeTime) -> None:
    """NEW_SESSION opens a session, later requests are routed by its id, and a fork goes to its source."""
    with connected(fake, time) as server:
        server.hello()
        with server.open() as session, session.fork() as fork:
            list(fork.prompt("Hello"))
    routed = [headers.get("x-amzn-sagemaker-session-id") for headers in fake.headers]
    first, second = session.session_id, fork.session_id
    assert routed == [None, "NEW_SESSION", first, second, second, first]
    assert fake.of_kind("open")[0]["session_id"] == first


def test_principals_travel_in_the_custom_attributes(service: Service, url: str) -> None:
    """The only header that the service passes on: a token is one attribute of it."""
    name = CUSTOM_ATTRIBUTES
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"token": "x.y.z"}, "token=x.y.z"),
        ({"headers": {name.upper(): "principal=alice"}}, "principal=alice"),
        ({"headers": {name: "trace=1"}, "token": "x"}, "trace=1,token=x"),
        ({}, None),
    ]
    for options, value in cases:
        service.answer(400, {"message": "seen"}, "ValidationError")
        with connect(url, **options) as server, pytest.raises(ServerRefused):
            server.hello()
        assert service.seen[-1][1].get(name.lower()) == value


def test_steps_open_a_session(service: Service, server: Server) -> None:
    """The first step of a sequence opens it, the next ones find it."""
    for turn in (1, 2):
        outputs: list[object] = []
        service.answer(
            200, {"model_name": "m", "session_id": "seq-0", "turn": turn, "outputs": outputs}
        )
    steps = server.steps("seq-0")
    steps.step({"number": [1]})
    steps.step({"number": b"\x01"})
    routed = [headers["x-amzn-sagemaker-session-id"] for _, headers, _ in service.seen]
    assert routed == ["NEW_SESSION", "seq-0"]
    assert service.seen[1][1]["content-type"].startswith("multipart/form-data; boundary=")
    assert b'name="number"' in service.seen[1][2]


@pytest.mark.parametrize("session_id", ["a_b", "a.b", "-a", "a-"])
def test_an_id_that_the_service_refuses_is_not_sent(
    service: Service, server: Server, session_id: str
) -> None:
    """Other transports accept it; here the error comes before anything is sent."""
    for call in (server.attach, lambda name: server.open(session_id=name)):
        with pytest.raises(InvalidRequest, match="hyphens") as caught:
            call(session_id)
        assert caught.value.field == "session_id"
    assert service.seen == []


@pytest.mark.parametrize(
    ("status", "error", "document", "expected"),
    [
        (400, "ValidationError", {"Message": "Session abc not found."}, SessionNotFound),
        (
            400,
            "ValidationError",
            {"Message": f"Endpoint {ENDPOINT} of account 1 not found."},
            ServerRefused,
        ),
        (403, "AccessDeniedException", {"Message": "no"}, ServerRefused),
        (413, None, {"message": "HTTP content length exceeded 6291456 bytes."}, RequestTooLarge),
        (
            424,
            "ModelError",
            {"OriginalStatusCode": 404, "OriginalMessage": "<html>"},
            ServerRefused,
        ),
    ],
)
def test_a_final_error_is_typed(
    service: Service,
    server: Server,
    time: FakeTime,
    status: int,
    error: str | None,
    document: dict[str, Any],
    expected: type[Exception],
) -> None:
    """It is not retried."""
    service.answer(status, document, error)
    with pytest.raises(expected):
        server.attach("abc")
    assert time.slept == []
    assert len(service.seen) == 1


@pytest.mark.parametrize(
    ("status", "error", "document"),
    [
        (400, "ThrottlingException", {"Message": "Rate exceeded"}),
        (429, "ModelNotReadyException", {"Message": "loading"}),
        (503, "ServiceUnavailable", {"Message": "try again"}),
        (500, "InternalFailure", {}),
        (530, "InternalDependencyException", {}),
        (424, "ModelError", {"OriginalStatusCode": 500, "OriginalMessage": "exited"}),
        (424, "ModelError", {"OriginalStatusCode": 503, "OriginalMessage": "<html>"}),
    ],
)
def test_an_error_that_passes_is_waited_out(
    service: Service,
    server: Server,
    time: FakeTime,
    status: int,
    error: str,
    document: dict[str, Any],
) -> None:
    """Throttling, and what fails inside service or container, is tried again after a delay."""
    service.answer(status, document, error)
    service.answer(400, {"Message": "Session abc not found."}, "ValidationError")
    with pytest.raises(SessionNotFound):
        server.attach("abc")
    assert time.slept == pytest.approx([0.1])


def test_a_turn_that_outlives_the_time_limit_is_joined(fake: FakeSessions, time: FakeTime) -> None:
    """The service waits for a minute; the client then sends the same turn again, and it happens once."""
    fake.fail("prompt", Fault(lost=True, stalls=True))
    with (
        endpoint_of(fake, limits=ServiceLimits(model_s=1.5)) as url,
        connect(f"sagemaker://{ENDPOINT}?endpoint_url={url}", policy=time.policy()) as server,
        server.open() as session,
    ):
        assert session.ask("Hello") == reply_to("Hello")
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 1]
    assert time.slept == []


def _streams(service: Service, *frames: bytes) -> None:
    headers = {"X-Amzn-SageMaker-Content-Type": "text/event-stream", "Content-Type": MEDIA_TYPE}
    service.answers.append(web.Response(body=b"".join(frames), headers=headers))


def _events(*documents: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)


LAST = {"text": "\u00e4", "session_id": "abc", "turn": 1, "finish_reason": "stop"}


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_events_are_cut_anywhere(service: Service, server: Server, cut: int) -> None:
    """A payload part holds a piece of an event, or several."""
    data = _events({"text": "one "}, {"text": "two "}, LAST).replace(b"\\u00e4", "\u00e4".encode())
    service.answer(200, {"session_id": "abc", "expires_at": "x", "usage": {}})
    _streams(service, *(payload_part(data[at : at + cut]) for at in range(0, len(data), cut)))
    pieces = list(server.open(session_id="abc").prompt("Hello"))
    assert pieces == ["one ", "two ", "\u00e4"]
    path, headers, _ = service.seen[1]
    assert path == f"/endpoints/{ENDPOINT}/invocations-response-stream"
    assert "authorization" not in headers  # to this machine itself


@pytest.mark.parametrize("kind", ["ModelStreamError", "InternalStreamFailure"])
def test_a_failed_stream_is_resumed(service: Service, server: Server, kind: str) -> None:
    """An error event is a broken connection: the turn goes on after the text so far."""
    service.answer(200, {"session_id": "abc", "expires_at": "x", "usage": {}})
    failure = stream_error(kind, {"Message": "gone", "ErrorCode": "StreamBroken"})
    _streams(service, payload_part(_events({"text": "one "})), failure)
    service.answer(200, {**LAST, "next": 5, "more": False})
    assert server.open(session_id="abc").prompt("Hello").result() == "one \u00e4"
    assert json.loads(service.seen[2][2])["after"] == 4


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_stream_is_resumed(service: Service, server: Server, at: int) -> None:
    """Its checksums show damage in its head, its payload or the checksum itself."""
    service.answer(200, {"session_id": "abc", "expires_at": "x", "usage": {}})
    damaged = bytearray(payload_part(_events({"text": "two "})))
    damaged[at] ^= 1
    _streams(service, payload_part(_events({"text": "one "})), bytes(damaged))
    service.answer(200, {**LAST, "next": 5, "more": False})
    assert server.open(session_id="abc").prompt("Hello").result() == "one \u00e4"
    assert json.loads(service.seen[2][2])["after"] == 4


def test_the_limit_of_the_service_holds_whatever_the_server_takes(
    fake: FakeSessions, time: FakeTime
) -> None:
    """A larger `max_body_bytes` does not raise the limit."""
    with (
        connected(fake, time, max_body_bytes=20_000_000) as server,
        pytest.raises(RequestTooLarge, match="6,291,456"),
    ):
        server.open(system="x" * 6_400_000)
    assert fake.requests == []


def test_an_endpoint_that_is_not_there_is_unreachable(time: FakeTime) -> None:
    """A refused connection is retried for a while and then raised."""
    url = f"sagemaker://{ENDPOINT}?endpoint_url=http://127.0.0.1:1"
    with (
        connect(url, policy=time.policy(max_retries=2)) as server,
        pytest.raises(ServerUnreachable),
    ):
        server.hello()
    assert time.slept == pytest.approx([0.1, 0.2])
