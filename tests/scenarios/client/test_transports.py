"""Particulars of each transport: profiles over gRPC, statuses over HTTP, addresses and TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from tests.support.fake_client import FakeTime, connected
from tests.support.fake_servers import grpc_server, http_server
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.client import (
    ClientError,
    DeadlineExceeded,
    ProtocolError,
    RequestTooLarge,
    RetryPolicy,
    ServerRefused,
    ServerUnreachable,
    Session,
    connect,
)
from ts_stateful.client.open_session import OpenSession
from ts_stateful.client.transports import rpc_calls
from ts_stateful.pb import inference_pb2
from ts_stateful.protocol.answers import Opened, Usage
from ts_stateful.protocol.errors import SessionNotFound


@pytest.mark.parametrize("profile", ["continuous", "async", "sequence"])
def test_the_profile_is_found_out_once(profile: str) -> None:
    """A gRPC client sends one `hello` in all to find its call, and takes no further place in a sequence batch."""
    fake = FakeSessions(profile=profile)
    with connected(fake, FakeTime()) as server:
        with server.open() as session:
            session.ask("Hello")
        server.open().close()
    hellos = fake.of_kind("hello")
    assert len(hellos) == 1
    if profile == "sequence":
        assert hellos[0]["session_id"] == session.session_id


@pytest.mark.parametrize("profile", ["continuous", "async"])
def test_an_answer_before_the_error_of_its_call_misleads_nobody(profile: str) -> None:
    """TorchServe under load lets its worker answer first; the profile is the one that the answer names."""
    fake = FakeSessions(profile=profile, overtakes=True)
    with connected(fake, FakeTime()) as server, server.open() as session:
        assert session.ask("Hello") == reply_to("Hello")


def test_a_profile_of_a_later_server_is_named() -> None:
    """A client that does not know it cannot know the call for it either."""
    fake = FakeSessions(profile="later")
    with connected(fake, FakeTime()) as server, pytest.raises(ProtocolError, match="'later'"):
        server.open()


@pytest.mark.parametrize("profile", ["continuous", "async", "sequence"])
def test_a_known_profile_is_not_asked_for(profile: str) -> None:
    """A client with a given profile sends nothing to find it out."""
    fake = FakeSessions(profile=profile)
    with connected(fake, FakeTime(), profile=profile) as server, server.open() as session:
        assert "".join(session.prompt("Hello")) == reply_to("Hello")
    assert fake.of_kind("hello") == []


@pytest.mark.parametrize("profile", ["continuous", "async", "sequence"])
def test_a_session_is_named_in_the_metadata_too(profile: str) -> None:
    """A proxy, which reads no messages, can send all calls about a session to one server."""
    fake = FakeSessions(profile=profile)
    with (
        connected(fake, FakeTime(), profile=profile, session_header="X-Session") as server,
        server.open() as session,
    ):
        assert "".join(session.prompt("Hello")) == reply_to("Hello")
    named = [headers.get("x-session") for headers in fake.headers]
    assert set(named) == {session.session_id}
    assert len(named) >= 3


def test_hello_without_a_session_names_the_shared_sequence() -> None:
    """In the sequence profile a request without a session goes under the one id that means none."""
    fake = FakeSessions(profile="sequence")
    with connected(fake, FakeTime()) as server:
        assert server.hello().profile == "sequence"
    assert [request["session_id"] for request in fake.requests] == [None, None]


def test_a_failure_while_the_profile_is_found_out_is_no_finding() -> None:
    """A server that is not there is asked again when it is."""
    fake, time = FakeSessions(profile="sequence"), FakeTime()
    fake.fail("hello", Fault())
    with connected(fake, time) as server:
        assert server.hello().profile == "sequence"
    assert len(time.slept) == 1


def test_a_server_that_is_slow_to_connect_has_the_whole_deadline() -> None:
    """A server that accepts and is still silent is busy or far away; the client waits until the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        policy = FakeTime().policy(max_retries=0)
        with (
            connect(url, profile="continuous", timeout_s=0.5, policy=policy) as server,
            pytest.raises(DeadlineExceeded),
        ):
            server.hello()


def test_pulling_pauses_while_nothing_is_new() -> None:
    """A turn that has nothing new is asked for in growing pauses of at most ten milliseconds."""
    fake, time = FakeSessions(quiet=6), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        assert "".join(session.prompt("Hello")) == reply_to("Hello")
    ms = [round(1000 * pause_s) for pause_s in time.slept]
    assert ms[:6] == [1, 2, 4, 8, 10, 10]
    assert ms[6] == 1


def test_pulling_does_not_pause_while_text_comes() -> None:
    """A turn with new text is asked for again at once, after the text so far."""
    fake, time = FakeSessions(), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        session.ask("Hello")
    afters = [request.get("after", 0) for request in fake.of_kind("continue")]
    assert afters == list(range(0, len(reply_to("Hello")), 3))
    assert time.slept == []


@pytest.mark.parametrize("fault", [Fault(), Fault(lost=True)], ids=["request lost", "answer lost"])
def test_a_pull_that_breaks_is_repeated(fault: Fault) -> None:
    """Text whose answer was lost is asked for again; none is missing or doubled."""
    fake, time = FakeSessions(), FakeTime()
    fake.fail("continue", fault, fault, fault)
    with connected(fake, time) as server, server.open() as session:
        assert "".join(session.prompt("Hello")) == reply_to("Hello")
    assert len(time.slept) == 3


def test_a_pull_that_is_not_answered_is_repeated() -> None:
    """A lost `continue` is given up after the stall time, not at the deadline of the turn."""
    fake = FakeSessions()
    fake.fail("continue", Fault(stalls=True))
    with connected(fake, FakeTime(), stall_s=0.2) as server, server.open() as session:
        assert session.ask("Hello") == reply_to("Hello")


def test_torchserves_error_over_grpc_is_named() -> None:
    """An INTERNAL of TorchServe becomes message, kind and status."""
    fake = FakeSessions()
    busy = b"no worker\norg.pytorch.serve.http.ServiceUnavailableException"
    fake.fail("hello", Fault(status=503, body=busy))
    with connected(fake, FakeTime()) as server:
        assert server.hello().model == "fake"  # after a retry
    fake.fail("hello", Fault(status=500, body=b"Prediction failed"))
    with (
        connected(fake, FakeTime(), profile="continuous") as server,
        pytest.raises(ServerRefused, match="Prediction failed") as caught,
    ):
        server.hello()
    assert caught.value.status == 500
    assert caught.value.kind is None


@pytest.mark.parametrize("profile", ["continuous", "async", "sequence"])
def test_a_smaller_limit_of_the_server_is_named(profile: str) -> None:
    """A request that only the server finds too large fails with the same exception, and is not repeated."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with (
        connected(fake, time, max_body_bytes=40_000_000) as server,
        pytest.raises(RequestTooLarge, match="max_request_size"),
    ):
        server.open(images=[bytes(20_000_000)])
    assert time.slept == []


def test_an_end_without_a_reason_is_no_end() -> None:
    """A last answer without the turn's end is not of the protocol."""
    fake = FakeSessions(profile="http")
    with connected(fake, FakeTime()) as server, server.open() as session:
        fake.fail("prompt", Fault(status=200, body=b'{"text": "a", "more": false}'))
        with pytest.raises(ProtocolError, match="how the turn ended"):
            session.ask("Hello")


def test_a_page_over_http_is_named() -> None:
    """A proxy's page, with a good or a bad status, is not taken for an answer."""
    fake = FakeSessions(profile="http")
    fake.fail("hello", Fault(status=413, body=b"<h1>Too large</h1>"))
    with connected(fake, FakeTime()) as server:
        with pytest.raises(ServerRefused, match="Too large") as caught:
            server.hello()
        assert caught.value.status == 413
        fake.fail("hello", Fault(status=200, body=b"<h1>Welcome</h1>"))
        with pytest.raises(ProtocolError, match="Welcome"):
            server.hello()


def test_a_stream_that_is_answered_whole_is_a_stream_of_one() -> None:
    """A streamed prompt that gets a plain document over HTTP is complete with it."""
    fake = FakeSessions(profile="http")
    body = b'{"text": "all", "finish_reason": "stop", "turn": 1}'
    with connected(fake, FakeTime()) as server, server.open() as session:
        fake.fail("prompt", Fault(status=200, body=body))
        assert list(session.prompt("Hello")) == ["all"]


def test_a_refused_stream_over_http_is_typed() -> None:
    """An error before the first event is raised as its class."""
    fake = FakeSessions(profile="http")
    with connected(fake, FakeTime()) as server, server.open() as session:
        fake.fail("prompt", Fault(error=SessionNotFound("gone")))
        with pytest.raises(SessionNotFound):
            session.prompt("Hello").result()


def test_requests_over_http_name_the_session_twice() -> None:
    """The header that TorchServe routes by and the body agree, and a proxy may drop the header."""
    fake = FakeSessions(profile="http")
    with connected(fake, FakeTime()) as server:
        server.open(session_id="mine").close()
    assert [headers["ts_request_sequence_id"] for headers in fake.headers] == ["mine"] * 2
    with connected(fake, FakeTime(), session_header="X-Id") as server:
        server.open(session_id="other").close()
    assert fake.headers[-1]["x-id"] == "other"


def test_a_path_comes_before_the_model() -> None:
    """A prefix of a gateway is kept, and SageMaker's one address is used as it is."""
    fake = FakeSessions(profile="http")
    with http_server(fake) as port:
        for path in ("/gateway/", "/invocations"):
            with connect(f"http://127.0.0.1:{port}{path}") as server:
                assert server.hello().model == "fake"


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:7070",
        "ftp://127.0.0.1",
        "grpc://",
        "grpc://host:99999",
        "http://user:pw@host",
        "http://host/?q=1",
        "grpc://host/path",
    ],
)
def test_an_address_that_is_not_valid_is_refused(url: str) -> None:
    """A wrong URL fails when the connection is made, not when it is used."""
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        connect(url)


def test_other_settings_are_checked_at_once() -> None:
    """A timeout of zero and an unknown profile are refused."""
    with pytest.raises(ValueError, match="timeout_s"):
        connect(timeout_s=0)
    with pytest.raises(ValueError, match="fast"):
        connect(profile="fast")


@pytest.mark.parametrize("scheme", ["grpc", "http"])
@pytest.mark.parametrize(
    "options",
    [
        {"token": "top-secret\nx"},
        {"token": "top-secret-é"},
        {"headers": {"X-Key": " top-secret"}},
        {"headers": {"X Key": "top-secret"}},
        {"session_header": "a b"},
    ],
)
def test_headers_are_checked_at_once(scheme: str, options: dict[str, Any]) -> None:
    """A header that cannot be sent is refused, and its value, which may be a token, is not shown."""
    with pytest.raises(ValueError, match="header") as caught:
        connect(f"{scheme}://host", **options)
    assert "top-secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_a_file_without_certificates_is_refused(scheme: str, tmp_path: Path) -> None:
    """It is named when the connection is made."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ValueError, match=r"ca\.pem"):
        connect(f"{scheme}://host", ca_file=tmp_path / "ca.pem")


def test_a_socks_proxy_without_its_library_is_a_client_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the package."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(ClientError, match="socksio"):
        connect("http://192.0.2.1")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(pem), "-keyout", str(key)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    return pem, key


def test_https_is_used_and_checked(certificate: tuple[Path, Path]) -> None:
    """`https://` works with the right certificate authority and refuses every other server."""
    pem, key = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, key)
    clock = FakeTime()
    policy = clock.policy(waits_for_server=True)
    with http_server(FakeSessions(profile="http"), tls) as port:
        with connect(f"https://127.0.0.1:{port}", ca_file=pem) as server:
            assert server.hello().model == "fake"
        with (
            connect(f"https://127.0.0.1:{port}", policy=policy) as server,
            pytest.raises(ServerUnreachable, match=r"(?i)`ca_file`.*certificate"),
        ):
            server.hello()
    assert clock.slept == []


def test_grpcs_is_used(certificate: tuple[Path, Path]) -> None:
    """`grpcs://` works with the right certificate authority and refuses every other server at once."""
    pem, key = certificate
    clock = FakeTime()
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), pem.read_bytes())])
    with (
        grpc_server(FakeSessions(), credentials) as port,
        connect(f"grpcs://127.0.0.1:{port}", ca_file=pem) as server,
        connect(f"grpcs://127.0.0.1:{port}", policy=clock.policy()) as other,
    ):
        assert server.hello().model == "fake"
        with pytest.raises(ServerUnreachable, match="`ca_file`"):
            other.hello()
    assert clock.slept == []


def test_a_refusal_inside_a_stream_is_read() -> None:
    """TorchServe without a free sequence sends an empty message with a status, and nothing more."""
    refused = inference_pb2.PredictionResponse(status=status_pb2.Status(code=13, message="full"))
    call = rpc_calls.GrpcCall(_Responses([inference_pb2.PredictionResponse(), refused]))
    with pytest.raises(ServerRefused, match="full") as caught:
        list(rpc_calls.messages(call, stall_s=30))
    assert caught.value.retryable


class _Responses(list[inference_pb2.PredictionResponse]):
    def cancel(self) -> None:
        """Do nothing: the call has ended."""


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_a_server_that_drips_is_left_at_the_deadline(kind: str) -> None:
    """Bytes without data, such as a proxy's comments, do not extend a request beyond its deadline."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n"
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.sendall(head.encode())
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    connection.sendall(b": still here\n\n")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with connect(url, policy=RetryPolicy(max_retries=0)) as server:
            session = Session(OpenSession(server._calls, "s", Opened("s", "", Usage())))
            stream = kind.startswith("text")
            with pytest.raises(DeadlineExceeded):
                session.prompt("Hello", stream=stream, timeout_s=0.3).result()
        listener.shutdown(socket.SHUT_RDWR)  # if the time was over before there was a connection
        thread.join()
