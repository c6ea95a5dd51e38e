"""The requests that HAProxy refuses, and the form in which a node gets others."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from tests.e2e.server import ROOT
from tests.e2e.speak import Speaker
from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed
from tests.support.fake_servers import grpc_server, http_server
from tests.support.fake_sessions import FakeSessions
from tests.support.haproxy import CONFIG, NO_HAPROXY, Proxy, haproxy, haproxy_binary
from tests.support.raw_node import RawNode, connection, exchange, raw_node
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.serving.ports import HOST, Ports

HEAD = b"POST /predictions/chat HTTP/1.1\r\nHost: a\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
HANDSHAKE = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
CLOSE = b"Connection: close\r\n"
UPLOADS = 3


@pytest.fixture(scope="module")
def binary() -> str:
    """Find HAProxy, or skip."""
    found = haproxy_binary()
    if found is None:
        pytest.skip(NO_HAPROXY)
    return found


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the configuration with short limits of time, so that tests of them are short."""
    text = CONFIG.read_text()
    for limit in ("timeout http-request 10s", "timeout client 30s", "wait-for-body time 10s"):
        assert text.count(limit) == 1
        text = text.replace(limit, f"{limit.rpartition(' ')[0]} 300ms")
    path = tmp_path_factory.mktemp("haproxy") / "haproxy.cfg"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def node() -> Iterator[RawNode]:
    """Start a node."""
    with raw_node() as node:
        yield node


@pytest.fixture(scope="module")
def proxy(
    binary: str, node: RawNode, impatient: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """Start HAProxy in front of the node, which stands for both."""
    nodes = [Ports(http=node.port)] * 2
    log = tmp_path_factory.mktemp("proxy") / "log"
    with haproxy(
        binary, nodes, log, impatient, TS_FRONT="torchserve", TS_UPLOADS=str(UPLOADS)
    ) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def asgi_proxy(
    binary: str, node: RawNode, impatient: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """Start HAProxy for nodes without TorchServe."""
    log = tmp_path_factory.mktemp("proxy") / "log"
    with haproxy(binary, [Ports(http=node.port)] * 2, log, impatient) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def patient_port(
    binary: str, node: RawNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Start HAProxy with its own limits of time, and return its port."""
    log = tmp_path_factory.mktemp("proxy") / "log"
    with haproxy(binary, [Ports(http=node.port)] * 2, log, TS_UPLOADS=str(UPLOADS)) as proxy:
        port = urlsplit(proxy.http_url).port
        assert port is not None
        yield port


@pytest.fixture
def port(proxy: Proxy, node: RawNode) -> int:
    """Return HAProxy's port, with nothing recorded yet."""
    node.requests.clear()
    port = urlsplit(proxy.http_url).port
    assert port is not None
    return port


def status(answer: bytes) -> int:
    """Return the status of an answer."""
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"1.1", b"1.0") + CHUNKED,
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n" + CHUNKED,
        HEAD + CHUNKED + CHUNKED,
        HEAD + b"Transfer-Encoding: chunked, gzip\r\n",
        HEAD + b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n",
        HEAD + b"Transfer-Encoding: \x0bchunked\r\n",
        HEAD + b"Transfer-Encoding:\r\nContent-Length: 5\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n",
        HEAD + b"Content-Length: +5\r\n",
    ],
)
def test_ambiguous_framing_is_refused(port: int, node: RawNode, head: bytes) -> None:
    """HTTP/1.0 with an encoding, other encodings than `chunked`, and lengths that differ get 400 or 422 from HAProxy."""
    assert status(exchange(port, head + CLOSE + b"\r\n" + CHUNKS)) in (400, 422)
    assert node.requests == []


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 5\r\n" + CHUNKED, CHUNKED + b"Content-Length: 5\r\n"]
)
def test_a_request_with_both_framings_hides_no_other(
    port: int, node: RawNode, framing: bytes
) -> None:
    """The node gets one request without its length, and HAProxy closes the connection: nothing after it is read."""
    answer = exchange(port, HEAD + framing + b"\r\n" + CHUNKS + SMUGGLED)
    assert answer.count(b"HTTP/1.1 ") == 1
    (request,) = node.requests
    assert request.body == b"hello"
    assert "content-length" not in request.headers


def test_chunks_are_written_again(port: int, node: RawNode) -> None:
    """Extensions and bare line feeds, which the node could read otherwise, do not reach it."""
    chunks = b"5;a=b\nhello\n0\n\n"
    assert status(exchange(port, HEAD + CHUNKED + CLOSE + b"\r\n" + chunks)) == 200
    (request,) = node.requests
    assert request.body == b"hello"


@pytest.mark.parametrize("method", [b"CONNECT", b"TRACE", b"DELETE", b"PATCH"])
def test_other_methods_are_refused(port: int, node: RawNode, method: bytes) -> None:
    """TorchServe would answer some of them with the text of a Java exception."""
    assert status(exchange(port, method + b" a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n")) in (400, 405)
    assert node.requests == []


def test_no_protocol_is_changed(port: int, node: RawNode) -> None:
    """A client that offers HTTP/2 over plain HTTP/1.1, as Java's does, is answered in HTTP/1.1."""
    offer = b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    answer = exchange(port, b"GET /ping HTTP/1.1\r\nHost: a\r\n" + offer + b"\r\n")
    assert status(answer) == 200
    assert not {"upgrade", "http2-settings"} & set(node.requests[0].headers)


def offers(port: int, path: bytes, protocol: bytes, method: bytes = b"GET") -> None:
    """Send a request that offers a protocol."""
    offer = b"Connection: upgrade\r\nUpgrade: " + protocol + b"\r\n" + HANDSHAKE
    exchange(port, method + b" " + path + b" HTTP/1.1\r\nHost: a\r\n" + offer + b"\r\n")


@pytest.mark.parametrize(
    ("path", "protocol", "method", "passes"),
    [
        (b"/v1/sessions", b"websocket", b"GET", True),
        (b"/v1/sessions/chat", b"WebSocket", b"GET", True),
        (b"/invocations-bidirectional-stream", b"websocket", b"GET", True),
        (b"/predictions/chat", b"websocket", b"GET", False),
        (b"/v1/sessions", b"h2c", b"GET", False),
        (b"/v1/sessions", b"websocket", b"POST", False),
    ],
)
def test_websockets_pass_where_a_node_has_them(
    asgi_proxy: Proxy, node: RawNode, path: bytes, protocol: bytes, method: bytes, passes: bool
) -> None:
    """Nothing else is carried through."""
    node.requests.clear()
    port = urlsplit(asgi_proxy.http_url).port
    assert port is not None
    offers(port, path, protocol, method)
    assert ("upgrade" in node.requests[0].headers) is passes


def test_torchserve_gets_no_websockets(port: int, node: RawNode) -> None:
    """It has none."""
    offers(port, b"/v1/sessions", b"websocket")
    assert "upgrade" not in node.requests[0].headers


def test_a_form_without_a_file_is_refused(port: int, node: RawNode) -> None:
    """TorchServe bounds neither the number nor the cost of its fields. A form with files goes to a node."""
    form = b"Content-Type: Application/x-www-form-urlencoded; a=b\r\nContent-Length: 3\r\n"
    assert status(exchange(port, HEAD + form + CLOSE + b"\r\na=b")) == 400
    assert node.requests == []
    parts = b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 3\r\n"
    assert status(exchange(port, HEAD + parts + CLOSE + b"\r\na=b")) == 200


def test_a_body_that_is_too_large_is_refused_by_its_length(port: int, node: RawNode) -> None:
    """The limit is that of the nodes, and nothing of the body is read."""
    settings = (ROOT / "config.properties").read_text()
    limit = int(settings.partition("max_request_size=")[2].split()[0])
    assert f"req.body_size gt {limit} " in CONFIG.read_text()
    large = b"Content-Length: %d\r\n\r\n" % (limit + 1)
    assert status(exchange(port, HEAD + large)) == 413
    assert node.requests == []


@pytest.mark.parametrize(
    "half",
    [HEAD, HEAD + b"Content-Length: 50\r\n\r\nhello", HEAD + CHUNKED + b"\r\n5\r\nhel"],
)
def test_half_a_request_ends(port: int, node: RawNode, half: bytes) -> None:
    """HAProxy answers 408 and closes the connection, and no node has given it a place."""
    assert status(exchange(port, half)) == 408
    assert node.requests == []


@pytest.mark.parametrize("framing", [b"Content-Length: 100000\r\n\r\n", CHUNKED + b"\r\nffff\r\n"])
def test_one_address_cannot_take_all_places(
    patient_port: int, node: RawNode, framing: bytes
) -> None:
    """Large bodies that never end get 429 beyond `TS_UPLOADS`; small requests go on, and places come back."""
    half = HEAD + framing + b"x" * 50_000
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connection(patient_port)) for _ in range(UPLOADS)]
        for upload in slow:
            upload.sendall(half)
        refused = b""
        # The slow ones arrive in any order, perhaps before those of another test have left: one more is too many at some time.
        while b" 429 " not in refused:
            upload = stack.enter_context(connection(patient_port))
            upload.sendall(half)
            upload.settimeout(1)
            with contextlib.suppress(TimeoutError):
                refused = upload.recv(1000)
        assert b"retry-after: 1\r\n" in refused
        small = HEAD + b"Content-Length: 5\r\n" + CLOSE + b"\r\nhello"
        assert status(exchange(patient_port, small)) == 200
    whole = HEAD + b"Content-Length: 100000\r\n" + CLOSE + b"\r\n" + b"x" * 100_000
    while status(exchange(patient_port, whole)) == 429:
        pass  # HAProxy has still to see that the slow ones have left
    assert len(node.requests[-1].body) == 100_000


def test_a_large_head_is_refused(port: int, node: RawNode) -> None:
    """TorchServe takes 8 KiB."""
    assert status(exchange(port, HEAD + b"X: " + b"x" * 9_000 + b"\r\n\r\n")) == 431
    assert node.requests == []


def test_two_clients_share_no_connection_to_a_node(proxy: Proxy, node: RawNode, port: int) -> None:
    """One client's requests may; a connection that one of them has left is not given to the other."""
    for _ in range(3):
        with httpx.Client(base_url=proxy.http_url, trust_env=False) as client:
            for _ in range(2):
                assert client.get("/ping").text == "ok"
    numbers = [request.connection for request in node.requests]
    assert len(numbers) == 6
    owners = {
        number: {index // 2 for index in range(6) if numbers[index] == number} for number in numbers
    }
    assert all(len(clients) == 1 for clients in owners.values())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate as two files, as Kubernetes mounts them."""
    if not has_openssl():
        pytest.skip(NO_OPENSSL)
    return self_signed(tmp_path_factory.mktemp("tls") / "tls.pem")


@pytest.mark.parametrize(
    ("offered", "chosen"), [(["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), ([], None)]
)
def test_tls_offers_http_2_and_1(
    binary: str, certificate: Path, tmp_path: Path, offered: list[str], chosen: str | None
) -> None:
    """HTTP and gRPC are served over TLS 1.3."""
    fake = FakeSessions("continuous")
    with http_server(fake) as http, grpc_server(fake) as port:
        nodes = [Ports(http=http, grpc=port)] * 2
        with haproxy(
            binary, nodes, tmp_path / "log", TS_FRONT="torchserve", TS_CERT=str(certificate)
        ) as proxy:
            context = ssl_context(certificate)
            if offered:
                context.set_alpn_protocols(offered)
            assert handshake(proxy, context) == ("TLSv1.3", chosen)
            with httpx.Client(verify=ssl_context(certificate), trust_env=False) as client:
                assert client.get(f"{proxy.http_url}/healthz").status_code == 200
            credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
            address = proxy.grpc_url.removeprefix("grpcs://")
            with grpc.secure_channel(address, credentials) as channel:
                hello = Speaker.message({"type": "hello"}, session="a")
                stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
                assert b"continuous" in stub.Predictions(hello, timeout=60).prediction


def ssl_context(certificate: Path) -> ssl.SSLContext:
    """Trust only this certificate."""
    return ssl.create_default_context(cafile=str(certificate))


def handshake(proxy: Proxy, context: ssl.SSLContext) -> tuple[str | None, str | None]:
    """Connect, and return the version of TLS and the protocol of the application."""
    parts = urlsplit(proxy.http_url)
    assert parts.port is not None
    with connection(parts.port) as raw, context.wrap_socket(raw, server_hostname=HOST) as secure:
        return secure.version(), secure.selected_alpn_protocol()
