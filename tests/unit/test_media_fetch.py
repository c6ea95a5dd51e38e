"""Images behind URLs: real sockets on loopback, an injected clock, name server and connector."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import httpcore
import pytest

from ts_stateful.config import MediaConfig
from ts_stateful.errors import MediaError, MediaForbidden, MediaInvalid, MediaTooLarge
from ts_stateful.media.connect import resolve
from ts_stateful.media.fetch import Fetcher

FIELD = "images[0].url"
PUBLIC, OTHER_PUBLIC = "93.184.216.34", "2606:4700::1111"
BODY = b"the bytes of an image"
Route = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """A web server on loopback whose routes write the raw answer; records what it is asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes: dict[str, Route] = {"/": answer(BODY)}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.released = threading.Event()  # what a route waits for that never answers
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients that go away are what is tested."""

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        self.server.routes[self.path](self)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def answer(body: bytes = b"", status: int = 200, **headers: str) -> Route:
    def route(handler: BaseHTTPRequestHandler) -> None:
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        head = f"HTTP/1.1 {status} Whatever\r\n{''.join(lines)}\r\n"
        handler.wfile.write(head.encode("latin-1") + body)

    return route


def redirect(location: str, status: int = 302) -> Route:
    return answer(status=status, Location=location, Set_Cookie="a=b", Content_Length="0")


def endless(start: bytes, again: bytes) -> Route:
    """Writes until the client has gone."""

    def route(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + start)
        while True:
            handler.wfile.write(again)

    return route


class Clock:
    """A clock that moves on by `step_s` whenever it is read."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


class Names:
    """A name server that gives its answers in turn, the last one for ever; records the questions."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Connector(httpcore.SyncBackend):
    """Records what it is asked to connect to, and connects to the server in its place.

    An address in `dead` refuses; without a server everything does.
    """

    def __init__(self, server: Server | None = None, dead: Iterable[str] = ()) -> None:
        self._server = server
        self._dead = frozenset(dead)
        self.connected: list[tuple[str, int]] = []

    def connect_tcp(
        self, host: str, port: int, *args: Any, **kwargs: Any
    ) -> httpcore.NetworkStream:
        self.connected.append((host, port))
        if self._server is None or host in self._dead:
            raise httpcore.ConnectError("refused")
        return super().connect_tcp("127.0.0.1", self._server.server_port, *args, **kwargs)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def make() -> Iterator[Callable[..., Fetcher]]:
    """Makes fetchers; settings are those of MediaConfig, by default one for the local server."""
    fetchers: list[Fetcher] = []

    def make(private: bool = True, seams: dict[str, Any] | None = None, **settings: Any) -> Fetcher:
        schemes: tuple[Literal["https", "http", "data"], ...] = ("https", "http", "data")
        config = MediaConfig(
            **{"allowed_schemes": schemes, "allow_private_addresses": private, **settings}
        )
        fetchers.append(Fetcher(config, **(seams or {})))
        return fetchers[-1]

    yield make
    for fetcher in fetchers:
        fetcher.close()


Make = Callable[..., Fetcher]


def refusal(fetcher: Fetcher, url: str, error: type[MediaError]) -> str:
    """The message with which `url` is refused, as exactly this error."""
    with pytest.raises(error) as caught:
        fetcher.fetch(url, FIELD)
    assert type(caught.value) is error
    assert caught.value.field == FIELD
    return caught.value.message


# What is fetched.


@pytest.mark.parametrize(
    "route",
    [
        answer(BODY),
        answer(BODY, Content_Length=str(len(BODY))),
        answer(b"15\r\n" + BODY + b"\r\n0\r\n\r\n", Transfer_Encoding="chunked"),
        answer(BODY + b"and more", Content_Length=str(len(BODY))),
        answer(BODY, Content_Encoding="identity", Content_Type="text/html"),
    ],
)
def test_a_body_is_fetched(server: Server, make: Make, route: Route) -> None:
    """The body is what the server sends, at most as long as it says, whatever type it claims."""
    server.routes["/"] = route
    assert make().fetch(server.url, FIELD) == BODY


def test_a_request_says_little(server: Server, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment is sent or used: no proxy, no credentials, no cookie, no referrer."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.routes["/a"] = redirect("/")
    assert make().fetch(f"{server.url}/a", FIELD) == BODY
    for _, headers in server.requests:
        assert headers == {
            "Host": f"127.0.0.1:{server.server_port}",
            "User-Agent": "ts-stateful",
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }


def test_data_urls_need_no_connection(make: Make) -> None:
    """A data URL is decoded within the limit of bytes; one that is malformed is invalid."""
    fetcher = make(max_bytes=5, seams={"backend": Connector()})
    assert fetcher.fetch("data:image/png;base64,aGVsbG8=", FIELD) == b"hello"
    refusal(fetcher, "data:image/png;base64,aGVsbG8h", MediaTooLarge)
    refusal(fetcher, "data:image/png;base64,aGVsbG8", MediaInvalid)
    refusal(make(allowed_schemes=("https",)), "data:image/png;base64,aGVsbG8=", MediaForbidden)


def test_plain_http_is_forbidden_by_default(make: Make) -> None:
    """Unless the configuration says otherwise only https and data URLs are taken."""
    fetcher = make(allowed_schemes=MediaConfig().allowed_schemes)
    assert refusal(fetcher, "http://example.com/", MediaForbidden).endswith("https:, data:")


def test_a_closed_fetcher_is_a_defect(make: Make) -> None:
    """A fetch by name after close is the caller's mistake and raises no media error."""
    fetcher = make()
    fetcher.close()
    with pytest.raises(RuntimeError):
        fetcher.fetch("http://example.com/", FIELD)


# Addresses and names.


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
        "127.1",
        "0",
        "0.0.0.0",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "user@127.0.0.1",
        "example.com@127.0.0.1",
        "127.0.0.1\\@example.com",
        "\uff11\uff12\uff17.0.0.1",
        "127。0。0。1",
        "ⓛocalhost",
        "%6cocalhost",
    ],
)
def test_no_connection_is_made_to_this_machine(make: Make, host: str) -> None:
    """However this machine is named, the URL is forbidden and nothing connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refusal(make(private=False), f"http://{host}:{port}/", MediaForbidden)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.168.0.1",
        "224.0.0.1",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "metadata.google.internal",
        "printer.local",
    ],
)
def test_no_connection_is_made_to_private_networks(make: Make, host: str) -> None:
    """Private and metadata addresses are forbidden; local names are not even looked up."""
    connector, names = Connector(), Names([PUBLIC])
    fetcher = make(private=False, seams={"backend": connector, "resolver": names})
    refusal(fetcher, f"http://{host}/", MediaForbidden)
    assert (connector.connected, names.asked) == ([], [])


def test_the_checked_address_is_connected_to(server: Server, make: Make) -> None:
    """A public name is looked up once; its address is connected to and its name is the Host."""
    connector, names = Connector(server), Names([PUBLIC], ["127.0.0.1"])
    fetcher = make(private=False, seams={"backend": connector, "resolver": names})
    assert fetcher.fetch("http://images.example.com:8080/", FIELD) == BODY
    assert connector.connected == [(PUBLIC, 8080)]
    assert names.asked == ["images.example.com"]
    assert server.requests[0][1]["Host"] == "images.example.com:8080"


def test_a_name_that_changes_to_a_private_address_is_forbidden(server: Server, make: Make) -> None:
    """A name that is public first and private next is forbidden when a redirect asks again."""
    connector, names = Connector(server), Names([PUBLIC], ["127.0.0.1"])
    fetcher = make(private=False, seams={"backend": connector, "resolver": names})
    server.routes["/a"] = redirect("/")
    refusal(fetcher, "http://images.example.com/a", MediaForbidden)
    assert connector.connected == [(PUBLIC, 80)]
    assert server.paths == ["/a"]


@pytest.mark.parametrize("mixed", [["10.0.0.1", PUBLIC], [PUBLIC, OTHER_PUBLIC, "::1"]])
def test_mixed_records_are_forbidden(make: Make, mixed: list[str]) -> None:
    """One private address among public ones forbids the whole name, without naming the address."""
    connector = Connector()
    fetcher = make(private=False, seams={"backend": connector, "resolver": Names(mixed)})
    message = refusal(fetcher, "http://images.example.com/", MediaForbidden)
    assert connector.connected == []
    assert not any(address in message for address in mixed)


def test_addresses_are_tried_in_turn(server: Server, make: Make) -> None:
    """Where one address of a name does not answer the next is tried, each within its share of time."""
    connector = Connector(server, dead=[OTHER_PUBLIC])
    seams = {"backend": connector, "resolver": Names([OTHER_PUBLIC, PUBLIC])}
    assert make(private=False, seams=seams).fetch("http://images.example.com/", FIELD) == BODY
    assert connector.connected == [(OTHER_PUBLIC, 80), (PUBLIC, 80)]


def test_private_addresses_can_be_allowed(server: Server, make: Make) -> None:
    """With private addresses allowed a name of the intranet is fetched, with its name as Host."""
    fetcher = make(seams={"resolver": Names(["127.0.0.1"])})
    url = f"http://images.internal:{server.server_port}/"
    assert fetcher.fetch(url, FIELD) == BODY
    assert server.requests[0][1]["Host"] == f"images.internal:{server.server_port}"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.com", True),
        ("EXAMPLE.com", True),
        ("a.cdn.example.com", True),
        ("a.b.cdn.example.com", True),
        ("[::1]", True),
        ("cdn.example.com", False),
        ("a.example.com", False),
        ("badcdn.example.com", False),
        ("example.com.evil.com", False),
        ("127.0.0.1", False),
        ("[::2]", False),
    ],
)
def test_only_allowed_hosts_are_fetched_from(
    server: Server, make: Make, host: str, allowed: bool
) -> None:
    """A list of hosts allows exactly those, and with `*.` the names below a domain."""
    connector = Connector(server)
    seams = {"backend": connector, "resolver": Names([PUBLIC])}
    fetcher = make(allowed_hosts=("Example.com", "*.cdn.example.com", "[::1]"), seams=seams)
    if allowed:
        assert fetcher.fetch(f"http://{host}/", FIELD) == BODY
    else:
        refusal(fetcher, f"http://{host}/", MediaForbidden)
        assert connector.connected == []


def test_an_allowed_host_must_still_be_public(make: Make) -> None:
    """To be on the list does not help a name whose address is private."""
    seams = {"backend": Connector(), "resolver": Names(["10.0.0.1"])}
    fetcher = make(private=False, allowed_hosts=("example.com",), seams=seams)
    refusal(fetcher, "http://example.com/", MediaForbidden)


@pytest.mark.parametrize("failure", [socket.gaierror("secret"), OSError("secret"), None])
def test_an_unknown_name_is_invalid(make: Make, failure: OSError | None) -> None:
    """A name that does not resolve, or to nothing, is invalid."""

    def unknown(host: str, port: int) -> Sequence[str]:
        if failure is not None:
            raise failure
        return []

    message = refusal(make(seams={"resolver": unknown}), "http://example.com/", MediaInvalid)
    assert message == "the URL's host cannot be resolved"


def test_the_systems_resolver_gives_each_address_once() -> None:
    """The system's answers hold no address twice, and a name without sense fails as an unknown one."""
    addresses = resolve("localhost", 80)
    assert set(addresses) <= {"127.0.0.1", "::1"}
    assert len(addresses) == len(set(addresses)) > 0
    with pytest.raises(OSError, match="resolved"):
        resolve("a" * 64, 80)


# Redirects.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_as_far_as_allowed(server: Server, make: Make, status: int) -> None:
    """As many redirects as the limit are followed; one more is invalid and is not requested."""
    server.routes["/a"] = redirect("/b", status)
    server.routes["/b"] = redirect(f"{server.url}/", status)
    assert make(max_redirects=2).fetch(f"{server.url}/a", FIELD) == BODY
    server.requests.clear()
    message = refusal(make(max_redirects=1), f"{server.url}/a", MediaInvalid)
    assert (message, server.paths) == (
        "the image's server redirects more than 1 times",
        ["/a", "/b"],
    )


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://10.0.0.1/",
        "//169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://2130706433/",
        "http://localhost/",
        "http://user@images.example.com/",
        "https://evil.com/",
        "file:///etc/passwd",
        "gopher://images.example.com/",
        "data:image/png;base64,aGVsbG8=",
        "/\\127.0.0.1/",
    ],
)
def test_a_redirect_is_checked_like_a_url(server: Server, make: Make, location: str) -> None:
    """An allowed host that redirects to what is not allowed is forbidden before any connection."""
    connector = Connector(server)
    seams = {"backend": connector, "resolver": Names([PUBLIC])}
    allowed = ("images.example.com", "127.0.0.1", "10.0.0.1", "localhost", "::1")
    fetcher = make(private=False, allowed_hosts=allowed, seams=seams)
    server.routes["/a"] = redirect(location)
    refusal(fetcher, "http://images.example.com/a", MediaForbidden)
    assert connector.connected == [(PUBLIC, 80)]


def test_a_redirect_to_nowhere_is_invalid(server: Server, make: Make) -> None:
    """A redirect without a location is an answer of the wrong status."""
    server.routes["/"] = answer(status=302)
    message = refusal(make(), server.url, MediaInvalid)
    assert message == "the image's server answered with status 302"


# Bytes.


@pytest.mark.parametrize(
    "route",
    [
        answer(b"x" * 1001),
        answer(b"x" * 1001, Content_Length="1001"),
        answer(Content_Length="1001"),
        answer(Content_Length=str(10**18)),
        endless(b"\r\n", b"x" * 100),
        endless(b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_a_body_is_cut_off_at_the_limit(server: Server, make: Make, route: Route) -> None:
    """A body beyond the limit is refused while it comes, or at once where the server admits it."""
    server.routes["/"] = route
    message = refusal(make(max_bytes=1000), server.url, MediaTooLarge)
    assert message == "the image has more than 1000 bytes"


def test_a_body_of_the_limit_is_taken(server: Server, make: Make) -> None:
    """Exactly as many bytes as the limit are fetched."""
    server.routes["/"] = answer(b"x" * 1000)
    assert len(make(max_bytes=1000).fetch(server.url, FIELD)) == 1000


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate", "gzip, identity", "x"])
def test_a_compressed_body_is_refused(server: Server, make: Make, encoding: str) -> None:
    """A body that the server compressed unasked is invalid and is never decompressed."""
    server.routes["/"] = answer(b"\x1f\x8b" * 50, Content_Encoding=encoding)
    message = refusal(make(), server.url, MediaInvalid)
    assert message == "the image's server compressed the answer unasked"


@pytest.mark.parametrize("status", [201, 204, 206, 304, 401, 404, 500, 503, 999])
def test_another_status_is_named(server: Server, make: Make, status: int) -> None:
    """An answer of another status is invalid; of what the server says only the number is passed on."""
    server.routes["/"] = answer(b"secret", status=status, X_Reason="secret")
    message = refusal(make(), server.url, MediaInvalid)
    assert message == f"the image's server answered with status {status}"


def raw(data: bytes) -> Route:
    def route(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)

    return route


@pytest.mark.parametrize(
    "route",
    [
        raw(b""),
        raw(b"SSH-2.0-OpenSSH_9.6 secret\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nsecret"),
        raw(b"HTTP/1.1 2000 OK\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsecret"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsecret"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsec"),
        endless(b"", b"A: " + b"b" * 10_000),
    ],
)
def test_a_broken_answer_is_invalid(server: Server, make: Make, route: Route) -> None:
    """What is no HTTP, truncated or endless in its headers is invalid, without the library's words."""
    server.routes["/"] = route
    message = refusal(make(), server.url, MediaInvalid)
    assert message == "the image could not be fetched from its server"


def test_a_refused_connection_is_invalid(make: Make) -> None:
    """A server that is not there is invalid in the same words."""
    seams = {"backend": Connector(), "resolver": Names([PUBLIC, OTHER_PUBLIC])}
    message = refusal(make(seams=seams), "http://example.com/", MediaInvalid)
    assert message == "the image could not be fetched from its server"


# Time.

TIMED_OUT = "the image could not be fetched within 20 s"


@pytest.mark.parametrize(
    "route",
    [
        endless(b"", b"A: b\r\n"),
        endless(b"\r\n", b"x"),
        endless(b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        endless(b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
        endless(b"Content-Length: 1000000000\r\n\r\n", b"x"),
    ],
    ids=["headers", "body", "chunks", "extension of a chunk", "announced body"],
)
def test_a_server_that_drips_is_cut_off(server: Server, make: Make, route: Route) -> None:
    """However little a server sends at a time, all of it has one deadline."""
    fetcher = make(timeout_sec=20, max_bytes=2**40, seams={"clock": Clock(step_s=4)})
    server.routes["/"] = route
    assert refusal(fetcher, server.url, MediaInvalid) in (
        TIMED_OUT,
        "the image could not be fetched from its server",  # headers beyond the library's bound
    )


def test_a_silent_server_is_cut_off(server: Server, make: Make) -> None:
    """A server that accepts and says nothing does not hold the fetch."""

    def silent(handler: BaseHTTPRequestHandler) -> None:
        server.released.wait()

    server.routes["/"] = silent
    message = refusal(make(timeout_sec=0.05), server.url, MediaInvalid)
    assert message == "the image could not be fetched within 0.05 s"


def test_redirects_share_the_time(server: Server, make: Make) -> None:
    """Every redirect takes from the same time; when it is over the next is not requested."""
    clock = Clock()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        clock.now_s += 7
        redirect(handler.path + "a")(handler)

    server.routes = dict.fromkeys(["/", "/a", "/aa", "/aaa"], slow)
    fetcher = make(timeout_sec=20, max_redirects=10, seams={"clock": clock})
    assert refusal(fetcher, server.url, MediaInvalid) == TIMED_OUT
    assert server.paths == ["/", "/a", "/aa"]


def test_the_name_server_shares_the_time(make: Make) -> None:
    """A name that took all the time to resolve is not connected to."""
    clock, connector = Clock(), Connector()

    def slow(host: str, port: int) -> Sequence[str]:
        clock.now_s += 21
        return [PUBLIC]

    seams = {"clock": clock, "backend": connector, "resolver": slow}
    assert refusal(make(timeout_sec=20, seams=seams), "http://a.com/", MediaInvalid) == TIMED_OUT
    assert connector.connected == []


def test_a_silent_name_server_is_cut_off(make: Make) -> None:
    """A name server that does not answer does not hold the fetch."""
    released = threading.Event()

    def silent(host: str, port: int) -> Sequence[str]:
        released.wait()
        return [PUBLIC]

    fetcher = make(timeout_sec=0.05, seams={"resolver": silent})
    try:
        message = refusal(fetcher, "http://example.com/", MediaInvalid)
    finally:
        released.set()
    assert message == "the image could not be fetched within 0.05 s"


def test_a_dead_address_leaves_time_for_the_others(make: Make) -> None:
    """Each address of a name gets an equal share of what is left."""
    shares: list[float | None] = []

    class Dead(httpcore.NetworkBackend):
        def connect_tcp(
            self, host: str, port: int, timeout: float | None = None, *args: Any, **kwargs: Any
        ) -> httpcore.NetworkStream:
            shares.append(timeout)
            raise httpcore.ConnectTimeout

    names = Names(["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"])
    fetcher = make(timeout_sec=20, seams={"clock": Clock(), "backend": Dead(), "resolver": names})
    assert refusal(fetcher, "http://example.com/", MediaInvalid) == TIMED_OUT
    assert shares == [5, 20 / 3, 10, 20]


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate for images.example.com that it signed itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=images.example.com"),
            *("-addext", "subjectAltName=DNS:images.example.com", "-keyout", key, "-out", chain),
        ],
        check=True,
        capture_output=True,
    )
    return key, chain


@pytest.fixture
def tls(server: Server, certificate: tuple[Path, Path]) -> tuple[ssl.SSLContext, list[str | None]]:
    """Turns the server into an https one: the client's context, and the names of SNI as they come."""
    key, chain = certificate
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    context.sni_callback = lambda _socket, name, _context: seen.append(name)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return ssl.create_default_context(cafile=str(chain)), seen


def test_tls_keeps_the_name(
    server: Server, make: Make, tls: tuple[ssl.SSLContext, list[str | None]]
) -> None:
    """Over TLS the checked address is connected to, and the name is in SNI, certificate and Host."""
    context, seen = tls
    connector = Connector(server)
    seams = {"backend": connector, "resolver": Names([PUBLIC]), "ssl_context": context}
    assert make(private=False, seams=seams).fetch("https://images.example.com/", FIELD) == BODY
    assert connector.connected == [(PUBLIC, 443)]
    assert seen == ["images.example.com"]
    assert server.requests[0][1]["Host"] == "images.example.com"


@pytest.mark.parametrize(
    ("host", "trusted"), [("other.example.com", True), ("images.example.com", False)]
)
def test_a_certificate_is_checked(
    server: Server,
    make: Make,
    tls: tuple[ssl.SSLContext, list[str | None]],
    host: str,
    trusted: bool,
) -> None:
    """A certificate for another name, or of nobody we know, is invalid in our own words."""
    seams: dict[str, Any] = {"backend": Connector(server), "resolver": Names([PUBLIC])}
    if trusted:
        seams["ssl_context"] = tls[0]
    message = refusal(make(private=False, seams=seams), f"https://{host}/", MediaInvalid)
    assert message == "the image could not be fetched from its server"
    assert server.requests == []


def test_a_server_that_drips_over_tls_is_cut_off(
    server: Server, make: Make, tls: tuple[ssl.SSLContext, list[str | None]]
) -> None:
    """The deadline holds for what comes through TLS as well."""
    server.routes["/"] = endless(b"\r\n", b"x" * 1000)
    fetcher = make(
        timeout_sec=20,
        max_bytes=10_000_000,
        seams={
            "clock": Clock(step_s=2),
            "backend": Connector(server),
            "resolver": Names([PUBLIC]),
            "ssl_context": tls[0],
        },
    )
    assert refusal(fetcher, "https://images.example.com/", MediaInvalid) == TIMED_OUT
