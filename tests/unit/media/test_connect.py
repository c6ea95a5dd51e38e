"""Connections to addresses that were checked: each in turn, all within one deadline, with the name kept for TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpcore
import pytest

from tests.support.web import (
    BODY,
    FIELD,
    OTHER_PUBLIC,
    PUBLIC,
    Connector,
    MakeFetcher,
    Names,
    Route,
    Site,
    StepClock,
    endless,
    redirect,
    refusal,
)
from ts_stateful.media.connect import DeadlineStream, Resolver, TimeLimit
from ts_stateful.protocol.errors import MediaInvalid


def test_addresses_are_tried_in_turn(site: Site, make_fetcher: MakeFetcher) -> None:
    """If one address of a name does not answer, the next is tried, each within its share of time."""
    connector = Connector(site, dead=[OTHER_PUBLIC])
    seams = {"backend": connector, "resolver": Names([OTHER_PUBLIC, PUBLIC])}
    assert (
        make_fetcher(private=False, seams=seams).fetch("http://images.example.com/", FIELD) == BODY
    )
    assert connector.connected == [(OTHER_PUBLIC, 80), (PUBLIC, 80)]


def test_the_systems_resolver_gives_each_address_once() -> None:
    """No address comes twice, and a name that is not valid fails as an unknown one."""
    addresses = Resolver().resolve("localhost", 80)
    assert set(addresses) <= {"127.0.0.1", "::1"}
    assert len(addresses) == len(set(addresses)) > 0
    with pytest.raises(OSError, match="resolved"):
        Resolver().resolve("a" * 64, 80)


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
def test_a_server_that_drips_is_cut_off(
    site: Site, make_fetcher: MakeFetcher, route: Route
) -> None:
    """All bytes share one deadline, also if the server sends few at a time."""
    fetcher = make_fetcher(timeout_sec=20, max_bytes=2**40, seams={"clock": StepClock(step_s=4)})
    site.routes["/"] = route
    assert (
        refusal(fetcher, site.url, MediaInvalid)
        in (
            TIMED_OUT,
            "the image could not be fetched from its server; check the URL",  # headers beyond the library's bound
        )
    )


def test_a_silent_server_is_cut_off(site: Site, make_fetcher: MakeFetcher) -> None:
    """A server that accepts and sends nothing does not hold the fetch."""

    def silent(handler: BaseHTTPRequestHandler) -> None:
        site.released.wait()

    site.routes["/"] = silent
    message = refusal(make_fetcher(timeout_sec=0.05), site.url, MediaInvalid)
    assert message == "the image could not be fetched within 0.05 s"


def test_redirects_share_the_time(site: Site, make_fetcher: MakeFetcher) -> None:
    """Every redirect takes from the same time; when it is over the next is not requested."""
    clock = StepClock()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        clock.now_s += 7
        redirect(handler.path + "a")(handler)

    site.routes = dict.fromkeys(["/", "/a", "/aa", "/aaa"], slow)
    fetcher = make_fetcher(timeout_sec=20, max_redirects=10, seams={"clock": clock})
    assert refusal(fetcher, site.url, MediaInvalid) == TIMED_OUT
    assert site.paths == ["/", "/a", "/aa"]


def test_the_name_server_shares_the_time(make_fetcher: MakeFetcher) -> None:
    """A name that took all the time to resolve is not connected to."""
    clock, connector = StepClock(), Connector()

    def pass_time() -> None:
        clock.now_s += 21

    names = Names([PUBLIC], before=pass_time)
    seams = {"clock": clock, "backend": connector, "resolver": names}
    assert (
        refusal(make_fetcher(timeout_sec=20, seams=seams), "http://a.com/", MediaInvalid)
        == TIMED_OUT
    )
    assert connector.connected == []


def test_a_silent_name_server_is_cut_off(make_fetcher: MakeFetcher) -> None:
    """A name server that does not answer does not hold the fetch."""
    released = threading.Event()
    names = Names([PUBLIC], before=released.wait)
    fetcher = make_fetcher(timeout_sec=0.05, seams={"resolver": names})
    try:
        message = refusal(fetcher, "http://example.com/", MediaInvalid)
    finally:
        released.set()
    assert message == "the image could not be fetched within 0.05 s"


def test_a_dead_address_leaves_time_for_the_others(make_fetcher: MakeFetcher) -> None:
    """Each address of a name gets an equal share of the time left."""
    shares: list[float | None] = []

    class Dead(httpcore.NetworkBackend):
        def connect_tcp(
            self, host: str, port: int, timeout: float | None = None, *args: Any, **kwargs: Any
        ) -> httpcore.NetworkStream:
            shares.append(timeout)
            raise httpcore.ConnectTimeout

    names = Names(["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"])
    fetcher = make_fetcher(
        timeout_sec=20, seams={"clock": StepClock(), "backend": Dead(), "resolver": names}
    )
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
def tls(site: Site, certificate: tuple[Path, Path]) -> tuple[ssl.SSLContext, list[str | None]]:
    """Turn the server into an https one; return the client's context, and the names of SNI as they come."""
    key, chain = certificate
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    context.sni_callback = lambda _socket, name, _context: seen.append(name)
    site.socket = context.wrap_socket(site.socket, server_side=True)
    return ssl.create_default_context(cafile=str(chain)), seen


def test_tls_keeps_the_name(
    site: Site, make_fetcher: MakeFetcher, tls: tuple[ssl.SSLContext, list[str | None]]
) -> None:
    """Over TLS the checked address is connected to, and the name is in SNI, certificate and Host."""
    context, seen = tls
    connector = Connector(site)
    seams = {"backend": connector, "resolver": Names([PUBLIC]), "ssl_context": context}
    assert (
        make_fetcher(private=False, seams=seams).fetch("https://images.example.com/", FIELD) == BODY
    )
    assert connector.connected == [(PUBLIC, 443)]
    assert seen == ["images.example.com"]
    assert site.requests[0][1]["Host"] == "images.example.com"


@pytest.mark.parametrize(
    ("host", "trusted"), [("other.example.com", True), ("images.example.com", False)]
)
def test_a_certificate_is_checked(
    site: Site,
    make_fetcher: MakeFetcher,
    tls: tuple[ssl.SSLContext, list[str | None]],
    host: str,
    trusted: bool,
) -> None:
    """A certificate for another name or of an unknown authority is invalid, without the library's words."""
    seams: dict[str, Any] = {"backend": Connector(site), "resolver": Names([PUBLIC])}
    if trusted:
        seams["ssl_context"] = tls[0]
    message = refusal(make_fetcher(private=False, seams=seams), f"https://{host}/", MediaInvalid)
    assert message == "the image could not be fetched from its server; check the URL"
    assert site.requests == []


def test_a_server_that_drips_over_tls_is_cut_off(
    site: Site, make_fetcher: MakeFetcher, tls: tuple[ssl.SSLContext, list[str | None]]
) -> None:
    """The deadline holds for bytes through TLS as well."""
    site.routes["/"] = endless(b"\r\n", b"x" * 1000)
    fetcher = make_fetcher(
        timeout_sec=20,
        max_bytes=10_000_000,
        seams={
            "clock": StepClock(step_s=2),
            "backend": Connector(site),
            "resolver": Names([PUBLIC]),
            "ssl_context": tls[0],
        },
    )
    assert refusal(fetcher, "https://images.example.com/", MediaInvalid) == TIMED_OUT


def test_a_connection_that_took_all_the_time_is_closed(site: Site) -> None:
    """Before TLS has begun no other object has its socket."""
    plain = httpcore.SyncBackend().connect_tcp("127.0.0.1", site.server_port)
    stream = DeadlineStream(plain, TimeLimit(StepClock(step_s=4), 3))
    with pytest.raises(httpcore.TimeoutException):
        stream.start_tls(ssl.create_default_context(), "localhost")
    assert plain.get_extra_info("socket").fileno() == -1
