"""Fetches of images by URL, redirects, and the bytes of an answer; real sockets on loopback."""

from __future__ import annotations

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
    answer,
    endless,
    raw,
    redirect,
    refusal,
)
from ts_stateful.config.schema import MediaConfig
from ts_stateful.protocol.errors import MediaForbidden, MediaInvalid, MediaTooLarge


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
def test_a_body_is_fetched(site: Site, make_fetcher: MakeFetcher, route: Route) -> None:
    """The body has the bytes that the server sends, up to the declared length, with any declared type."""
    site.routes["/"] = route
    assert make_fetcher().fetch(site.url, FIELD) == BODY


def test_a_request_has_few_headers(
    site: Site, make_fetcher: MakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the environment is sent or used: no proxy, no credentials, no cookie, no referrer."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.routes["/a"] = redirect("/")
    assert make_fetcher().fetch(f"{site.url}/a", FIELD) == BODY
    for _, headers in site.requests:
        assert headers == {
            "Host": f"127.0.0.1:{site.server_port}",
            "User-Agent": "ts-stateful",
            "Accept": "image/*, audio/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }


def test_data_urls_need_no_connection(make_fetcher: MakeFetcher) -> None:
    """A data URL is decoded within the limit of bytes; a malformed one is invalid."""
    fetcher = make_fetcher(max_bytes=5, seams={"backend": Connector()})
    assert fetcher.fetch("data:image/png;base64,aGVsbG8=", FIELD) == b"hello"
    refusal(fetcher, "data:image/png;base64,aGVsbG8h", MediaTooLarge)
    refusal(fetcher, "data:image/png;base64,aGVsbG8", MediaInvalid)
    refusal(
        make_fetcher(allowed_schemes=("https",)), "data:image/png;base64,aGVsbG8=", MediaForbidden
    )


def test_plain_http_is_forbidden_by_default(make_fetcher: MakeFetcher) -> None:
    """By default only https and data URLs are accepted."""
    fetcher = make_fetcher(allowed_schemes=MediaConfig().allowed_schemes)
    assert refusal(fetcher, "http://example.com/", MediaForbidden).endswith("https:, data:")


def test_a_closed_fetcher_is_a_defect(make_fetcher: MakeFetcher) -> None:
    """A fetch by name after close is the caller's mistake and raises no media error."""
    fetcher = make_fetcher()
    fetcher.close()
    with pytest.raises(RuntimeError):
        fetcher.fetch("http://example.com/", FIELD)


# Redirects.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_as_far_as_allowed(
    site: Site, make_fetcher: MakeFetcher, status: int
) -> None:
    """As many redirects as the limit are followed; one more is invalid and is not requested."""
    site.routes["/a"] = redirect("/b", status)
    site.routes["/b"] = redirect(f"{site.url}/", status)
    assert make_fetcher(max_redirects=2).fetch(f"{site.url}/a", FIELD) == BODY
    site.requests.clear()
    message = refusal(make_fetcher(max_redirects=1), f"{site.url}/a", MediaInvalid)
    assert (message, site.paths) == (
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
def test_a_redirect_is_checked_like_a_url(
    site: Site, make_fetcher: MakeFetcher, location: str
) -> None:
    """An allowed host that redirects to what is not allowed is forbidden before any connection."""
    connector = Connector(site)
    seams = {"backend": connector, "resolver": Names([PUBLIC])}
    allowed = ("images.example.com", "127.0.0.1", "10.0.0.1", "localhost", "::1")
    fetcher = make_fetcher(private=False, allowed_hosts=allowed, seams=seams)
    site.routes["/a"] = redirect(location)
    refusal(fetcher, "http://images.example.com/a", MediaForbidden)
    assert connector.connected == [(PUBLIC, 80)]


def test_a_redirect_to_nowhere_is_invalid(site: Site, make_fetcher: MakeFetcher) -> None:
    """A redirect without a location is an answer of the wrong status."""
    site.routes["/"] = answer(status=302)
    message = refusal(make_fetcher(), site.url, MediaInvalid)
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
def test_a_body_is_cut_off_at_the_limit(
    site: Site, make_fetcher: MakeFetcher, route: Route
) -> None:
    """A body beyond the limit is refused while it comes, or at once where the server admits it."""
    site.routes["/"] = route
    message = refusal(make_fetcher(max_bytes=1000), site.url, MediaTooLarge)
    assert message == "the file has more than 1000 bytes; send a smaller one"


def test_a_body_of_the_limit_is_taken(site: Site, make_fetcher: MakeFetcher) -> None:
    """Exactly as many bytes as the limit are fetched."""
    site.routes["/"] = answer(b"x" * 1000)
    assert len(make_fetcher(max_bytes=1000).fetch(site.url, FIELD)) == 1000


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate", "gzip, identity", "x"])
def test_a_compressed_body_is_refused(site: Site, make_fetcher: MakeFetcher, encoding: str) -> None:
    """A body that the server compressed unasked is invalid and is never decompressed."""
    site.routes["/"] = answer(b"\x1f\x8b" * 50, Content_Encoding=encoding)
    message = refusal(make_fetcher(), site.url, MediaInvalid)
    assert message == "the image's server compressed the answer unasked"


@pytest.mark.parametrize("status", [201, 204, 206, 304, 401, 404, 500, 503, 999])
def test_another_status_is_named(site: Site, make_fetcher: MakeFetcher, status: int) -> None:
    """An answer of another status is invalid; the message has only the number of it."""
    site.routes["/"] = answer(b"secret", status=status, X_Reason="secret")
    message = refusal(make_fetcher(), site.url, MediaInvalid)
    assert message == f"the image's server answered with status {status}"


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
def test_a_broken_answer_is_invalid(site: Site, make_fetcher: MakeFetcher, route: Route) -> None:
    """An answer that is no HTTP, or has truncated or endless headers, is invalid, without the library's words."""
    site.routes["/"] = route
    message = refusal(make_fetcher(), site.url, MediaInvalid)
    assert message == "the image could not be fetched from its server; check the URL"


def test_a_refused_connection_is_invalid(make_fetcher: MakeFetcher) -> None:
    """A server that is not there is invalid in the same words."""
    seams = {"backend": Connector(), "resolver": Names([PUBLIC, OTHER_PUBLIC])}
    message = refusal(make_fetcher(seams=seams), "http://example.com/", MediaInvalid)
    assert message == "the image could not be fetched from its server; check the URL"
