"""Hostile clients of the front without TorchServe: another client's session goes on, and no process is replaced."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.e2e.server import ENDLESS
from tests.e2e.speak import DEADLINE_S, HEADER, Innocent, Speaker, error_of, eventually
from tests.support.hostile import DEEP
from ts_stateful.client import RequestTooLarge, RetryPolicy
from ts_stateful.client import connect as connect_client
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.protocol.errors import MediaTooLarge
from ts_stateful.serving.server import LocalServer

HELLO = {"type": "hello"}
MAX_BODY_BYTES = 28_000_000
LARGE_BYTES = 30_000_000  # more than a body may have
FLOOD = 20_000  # requests of a client that reads nothing
MAX_GROWTH = 60_000_000  # bytes of the front's memory
MALFORMED = [b"", b"hello", b"[1]", DEEP, b'{"prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}']
MALFORMED += [b'{"prompt": "x", "seed": NaN}', b'{"type": "hello", "type": "open"}', bytes(100)]


@pytest.fixture
def asgi(asgi_server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Iterator[Speaker]:
    """A client of the shared server, beside an innocent one."""
    speaker = speak(asgi_server)
    with Innocent(speaker) as innocent:
        yield speaker
        innocent.goes_on()


@pytest.fixture
def session(asgi: Speaker) -> Iterator[str]:
    """A session that the test may mistreat."""
    name = asgi.open()
    yield name
    asgi.ask({"type": "close"}, session=name)


def socket_of(asgi: Speaker, **headers: str) -> ClientConnection:
    """A WebSocket."""
    url = asgi.server.http_url.replace("http://", "ws://")
    return connect(f"{url}/v1/sessions", proxy=None, additional_headers=headers)


def told(line: ClientConnection, message: str | bytes) -> dict[str, Any]:
    """Send a message as it is, and return the document that answers."""
    line.send(message)
    answer: dict[str, Any] = json.loads(line.recv(timeout=DEADLINE_S))
    return answer


def raw(asgi: Speaker, request: bytes) -> bytes:
    """Send bytes to the HTTP port; return what comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", asgi.server.ports.http)) as line:
        line.settimeout(DEADLINE_S)
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(65_536), b""))


def post(*headers: bytes, body: bytes = b'{"type": "info"}') -> bytes:
    """A request whose headers no library would send."""
    head = [b"POST /predictions/chat HTTP/1.1", b"Host: x", b"Connection: close", *headers]
    return b"\r\n".join((*head, b"Content-Length: %d" % len(body), b"", body))


@pytest.mark.parametrize("name", ["a\r\nb", "a\nb", "a\0b", "x" * 227, " a", "ä", "a;b", ".."])
def test_ids_of_a_wrong_form_are_refused_everywhere(asgi: Speaker, name: str) -> None:
    """In documents and messages, where no header bounds what a text may have."""
    document = {"type": "open", "session_id": name}
    assert error_of(asgi.post(document).json()) == ("invalid_request", 400)
    with socket_of(asgi) as line:
        assert error_of(told(line, json.dumps(document))) == ("invalid_request", 400)
    with asgi.stub() as stub:
        reply = stub.Predictions(asgi.message(HELLO | {"type": "info"}, session=name))
        assert error_of(json.loads(reply.prediction)) == ("invalid_request", 400)


def test_bytes_that_are_no_header_reach_no_model(asgi: Speaker, session: str) -> None:
    """NUL, a bare CR, and lines that continue others."""
    name = HEADER.encode()
    for value in (b"a\0b", b"a\rb", b"a\r\n b", b"a\x7fb"):
        answer = raw(asgi, post(name + b": " + value))
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:80]
        assert b"set-cookie" not in answer.lower()
    two = (name + b": " + session.encode(), b"TS-Request-Sequence-Id: other")
    answer = raw(asgi, post(*two))
    assert b"session_id_mismatch" in answer
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert raw(asgi, post(two[0], two[0])).startswith(b"HTTP/1.1 200 ")


def test_no_text_of_a_client_becomes_a_header(asgi: Speaker) -> None:
    """Answers name ignored fields, requests and sessions in headers."""
    body = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    body |= {"x\r\nSet-Cookie: a=b": 1, "model": "chat\r\nSet-Cookie: a=b"}
    url = f"{asgi.server.http_url}/v1/chat/completions"
    headers = {"x-request-id": "a b;c", "traceparent": "00-x\tSet-Cookie"}
    answer = asgi.http.post(url, json=body, headers=headers)
    assert "set-cookie" not in answer.headers
    assert answer.headers["x-request-id"] != "a b;c"


def test_the_same_turn_twice_at_once_is_taken_once(asgi: Speaker, session: str) -> None:
    """Both get its reply."""
    document = {"prompt": "What color is the circle?", "turn": 1}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(asgi.ask, document, session=session) for _ in range(4)]
    assert {one.result()["text"] for one in asked} == {"red"}
    assert asgi.ask({"type": "info"}, session=session)["turns"] == 1


def test_every_wrong_grpc_call_ends(asgi: Speaker) -> None:
    """By an answer or an error, well before its deadline."""
    empty, nobody = PredictionsRequest(), asgi.message(HELLO)
    nobody.model_name = "nobody"
    many = asgi.message(HELLO)
    many.input.update({str(number): b"x" for number in range(100)})
    with asgi.stub() as stub:
        for request in (empty, nobody, many, asgi.message([])):
            calls = [
                stub.StreamPredictions(request, timeout=DEADLINE_S),
                stub.StreamPredictions2(iter([request]), timeout=DEADLINE_S),
            ]
            for call in calls:
                with contextlib.suppress(grpc.RpcError):
                    list(call)
            calls.append(stub.Predictions.future(request, timeout=DEADLINE_S))
            expected = (
                grpc.StatusCode.OK if request.model_name == "chat" else grpc.StatusCode.NOT_FOUND
            )
            assert {call.code() for call in calls} == {expected}
        assert list(stub.StreamPredictions2(iter([]), timeout=DEADLINE_S)) == []


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_messages_are_refused(asgi: Speaker, body: bytes) -> None:
    """Over WebSocket, as text and as bytes, and over gRPC; the connection goes on."""
    with socket_of(asgi) as line:
        assert error_of(told(line, body)) == ("invalid_request", 400)
        with contextlib.suppress(UnicodeDecodeError):
            assert error_of(told(line, body.decode())) == ("invalid_request", 400)
        assert told(line, json.dumps(HELLO))["profile"] == "asgi"
    with asgi.stub() as stub:
        request = PredictionsRequest(model_name="chat", input={"data": body})
        for reply in (
            stub.Predictions(request, timeout=DEADLINE_S),
            *stub.StreamPredictions(request, timeout=DEADLINE_S),
            *stub.StreamPredictions2(iter([request]), timeout=DEADLINE_S),
        ):
            assert error_of(json.loads(reply.prediction)) == ("invalid_request", 400)


def test_large_bodies_have_the_limit_in_their_error(asgi: Speaker) -> None:
    """7 MB, and 30 MB, of which little is read."""
    small, large = "x" * 7_000_000, "x" * LARGE_BYTES
    document = {"prompt": small}
    assert error_of(asgi.post(document).json()) == ("context_too_long", 413)
    policy = RetryPolicy(max_retries=0)
    for url, problem in (
        (asgi.server.http_url, MediaTooLarge),
        (asgi.server.grpc_url, RequestTooLarge),
    ):
        with (
            connect_client(url, policy=policy, max_body_bytes=2 * LARGE_BYTES) as connection,
            connection.open() as session,
            pytest.raises(problem) as caught,
        ):
            session.ask(large)
        assert "28000000" in str(caught.value) or "30,000,1" in str(caught.value)
    with socket_of(asgi) as line, pytest.raises(ConnectionClosed):
        told(line, json.dumps({"prompt": large}))


def test_large_bodies_that_stop_keep_nobody_out(asgi: Speaker) -> None:
    """Their bytes are bounded: another large one is refused for now, and small ones are answered."""
    head = (
        b"POST /predictions/chat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MAX_BODY_BYTES
    )
    with contextlib.ExitStack() as stack:

        def hold() -> None:
            line = socket.create_connection(("127.0.0.1", asgi.server.ports.http))
            stack.enter_context(line).settimeout(DEADLINE_S)
            with contextlib.suppress(OSError):  # of one that is refused
                line.sendall(head + bytes(MAX_BODY_BYTES - 1))

        def send() -> httpx.Response:
            return asgi.post(content=bytes(MAX_BODY_BYTES - 1))

        for _ in range(7):
            hold()
        for _ in range(8):  # one that comes before their last bytes were read may take a place
            hold()
            refused = send()
            if refused.status_code == 503:
                break
        assert error_of(refused.json()) == ("server_busy", 503)
        assert refused.headers["Retry-After"] == "1"
        assert asgi.ask(HELLO)["profile"] == "asgi"
    eventually(lambda: send().status_code != 503)


def test_clients_that_read_nothing_are_held_back(asgi: Speaker, session: str) -> None:
    """The front's memory is bounded, whatever they ask for; a turn that nobody reads ends."""
    front = psutil.Process(asgi.worker_pid())
    before = front.memory_info().rss
    port = asgi.server.ports.http
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            line.settimeout(1.0)
            request = post(body=json.dumps(HELLO).encode()).replace(b"Connection: close\r\n", b"")
            with contextlib.suppress(TimeoutError):
                line.sendall(request * FLOOD)
        line = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        turn = json.dumps({**ENDLESS, "stream": True}).encode()
        line.sendall(post(HEADER.encode() + b": " + session.encode(), body=turn))
        flooded = stack.enter_context(socket_of(asgi))
        flooded.socket.settimeout(1.0)
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            for _ in range(FLOOD):
                flooded.send(json.dumps(HELLO))
        for _ in range(5):
            assert asgi.ask(HELLO)["profile"] == "asgi"
        assert front.memory_info().rss - before < MAX_GROWTH
        flooded.socket.shutdown(socket.SHUT_RDWR)
    eventually(lambda: asgi.figure("StatefulTurnsInProgress") == 0)


def test_pages_of_other_origins_open_no_socket_session(asgi: Speaker) -> None:
    """Browsers let every page connect; the server looks at the origin."""
    before = asgi.figure("StatefulSessionsOpen")
    with socket_of(asgi, Origin="https://evil.example") as line:
        refused = told(line, json.dumps({"type": "open"}))
    assert (error_of(refused), refused["error"]["field"]) == (("invalid_request", 400), "origin")
    assert asgi.figure("StatefulSessionsOpen") <= before  # those of earlier tests may end


def test_ids_are_on_no_page_and_in_no_log(asgi: Speaker) -> None:
    """Who knows a session's id has the session."""
    name = "known-by-its-client-alone"
    asgi.ask({"type": "open"}, session=name)
    events = asgi.events({**ENDLESS, "stream": True}, session=name)
    next(events)
    events.close()  # type: ignore[attr-defined]
    asgi.post({"type": "open"}, session=name)
    pages = [asgi.metrics(), asgi.server.log_tail()]
    base, management = asgi.server.http_url, asgi.server.management_url
    for path in (
        "/sessions",
        "/v1/sessions",
        "/admin/sessions",
        "/models/chat",
        "/metrics",
        "/readyz",
    ):
        pages += [asgi.http.get(url + path).text for url in (base, management)]
    assert not [page for page in pages if name in page]
    asgi.ask({"type": "close"}, session=name)
