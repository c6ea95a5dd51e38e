"""The one reading of URLs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.media.urls import Target, parse_url, resolve_redirect
from ts_stateful.protocol.errors import MediaError, MediaForbidden, MediaInvalid

FIELD = "images[0].url"
WEB = ("https", "http")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", Target("https", "example.com", 443, "/")),
        ("HTTP://EXAMPLE.com:8080/a?b#c", Target("http", "example.com", 8080, "/a?b")),
        ("https://example.com?q=@x:y", Target("https", "example.com", 443, "/?q=@x:y")),
        ("https://example.com/a@b//c%20d", Target("https", "example.com", 443, "/a@b//c%20d")),
        ("https://x_y.xn--bcher-kva.de/", Target("https", "x_y.xn--bcher-kva.de", 443, "/")),
        ("http://8.8.8.8:80/", Target("http", "8.8.8.8", 80, "/")),
        ("http://[2606:4700:0:0::1111]/", Target("http", "2606:4700::1111", 80, "/")),
        ("http://1.2.3.4.nip.io/", Target("http", "1.2.3.4.nip.io", 80, "/")),
    ],
)
def test_urls_are_parsed(url: str, target: Target) -> None:
    """A plain URL gives scheme, host, port and path, in canonical form and without its fragment."""
    assert parse_url(url, WEB, FIELD) == target


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://example.com:80/", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("https://[2606:4700::1]:8443/", "[2606:4700::1]:8443"),
    ],
)
def test_the_host_header_leaves_the_default_port_out(url: str, authority: str) -> None:
    """The authority is written as browsers write it: IPv6 in brackets, no default port."""
    assert parse_url(url, WEB, FIELD).authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/a.png",
        "gopher://example.com/",
        "unix:/run/docker.sock",
        "javascript:alert(1)",
        "/etc/passwd",
        "../../etc/passwd",
        "C:\\image.png",
        "\\\\server\\share\\a.png",
        "//example.com/a.png",
        "image.png",
        " http://example.com/",
        "data:image/png;base64,aGVsbG8=",
        "http+unix://example.com/",
    ],
)
def test_other_schemes_are_forbidden(url: str) -> None:
    """A scheme that is not allowed, a local path and a relative URL are forbidden."""
    with pytest.raises(MediaForbidden) as caught:
        parse_url(url, WEB, FIELD)
    assert caught.value.message == "the URL's scheme is not allowed; allowed: https:, http:"


@pytest.mark.parametrize(
    "authority",
    [
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0X7F.0.0.1",
        "0177.0.0.1",
        "127.0.0.01",
        "127.1",
        "127.0.1",
        "1.2.3.4.5",
        "256.1.1.1",
        "0",
        "0x",
        "example.123",
        "127.0.0.1.",
        "localhost.",
        "example.com.",
        ".example.com",
        "example..com",
        ".",
        "user@example.com",
        "user:pass@example.com",
        "example.com@127.0.0.1",
        "@example.com",
        "127.0.0.1\\@example.com",
        "example.com\\.evil.com",
        "127.0.0.1%00.example.com",
        "%31%32%37.0.0.1",
        "[::1%25eth0]",
        "[::1%lo]",
        "[127.0.0.1]",
        "[::g]",
        "[]",
        "[v1.x]",
        "ⓔxample.com",
        "\uff11\uff12\uff17.0.0.1",
        "example。com",
        "exam\u00adple.com",
        "bücher.de",
        "\u212aelvin.com",
        "-example.com",
        "exa$mple.com",
        "exa,mple.com",
        "a" * 64 + ".com",
        "a." * 130 + "com",
    ],
)
def test_disguised_hosts_are_forbidden(authority: str) -> None:
    """Every way of writing a host that parsers read differently is forbidden."""
    with pytest.raises(MediaForbidden) as caught:
        parse_url(f"http://{authority}/a.png", WEB, FIELD)
    assert caught.value.field == FIELD


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http:",
        "http://",
        "http:///a.png",
        "http:example.com",
        "http:/example.com",
        "http://?a",
        "http://:80/",
        "http://example.com:/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:999999/",
        "http://example.com:-1/",
        "http://example.com:8o/",
        "http://example.com:\uff18\uff10/",
        "http://example.com:80:80/",
        "http://::1/",
        "http://[::1]x/",
        "http://example.com/a b",
        "http://example.com/\r\nHost: evil",
        "http://exam\tple.com/",
        "http://example.com/\x00",
        "http://example.com /",
        "http://example.com/\x7f",
        "http://example.com/ü.png",
        "http://example.com/" + "a" * 8192,
    ],
)
def test_malformed_urls_are_invalid(url: str) -> None:
    """A URL without a host, with a port out of range, with spaces or control characters is invalid."""
    with pytest.raises(MediaInvalid) as caught:
        parse_url(url, WEB, FIELD)
    assert caught.value.field == FIELD


@given(
    st.one_of(
        st.text(max_size=60),
        st.text(max_size=60).map("http://".__add__),
        st.text("[]:@/\\.%?#0123456789abxABX-_ ", max_size=40).map("http://".__add__),
    )
)
def test_what_was_parsed_parses_to_itself(url: str) -> None:
    """Any text is refused as media, or its target is plain ASCII and reads the same once more."""
    with contextlib.suppress(MediaError):
        target = parse_url(url, WEB, FIELD)
        assert parse_url(target.url, WEB, FIELD) == target
        assert set(target.url) <= set(map(chr, range(0x21, 0x7F)))
        assert not set(target.host) & set("@/\\?#%[]")


@pytest.mark.parametrize(
    ("location", "url"),
    [
        (b"/b?c", "https://example.com:8443/b?c"),
        (b"b", "https://example.com:8443/x/b"),
        (b"../b", "https://example.com:8443/b"),
        (b"//other.com/b", "https://other.com/b"),
        (b"http://other.com", "http://other.com/"),
        (b"#a", "https://example.com:8443/x/y?q"),
    ],
)
def test_redirects_are_resolved_against_the_url(location: bytes, url: str) -> None:
    """A Location may be relative in every way that a URL may be."""
    base = parse_url("https://example.com:8443/x/y?q", WEB, FIELD)
    assert resolve_redirect(base, location, WEB, FIELD).url == url


@pytest.mark.parametrize(
    ("location", "error"),
    [
        (b"file:///etc/passwd", MediaForbidden),
        (b"gopher://example.com/", MediaForbidden),
        (b"data:image/png;base64,aGVsbG8=", MediaForbidden),
        (b"http://user@example.com/", MediaForbidden),
        (b"http://0x7f.1/", MediaForbidden),
        (b"/\\evil.com", MediaForbidden),
        (b"http://[::1", MediaInvalid),
        (b"/a\tb", MediaInvalid),
        (b" /a", MediaInvalid),
        (b"/\xc3\xbc", MediaInvalid),
        (b"http://:1/", MediaInvalid),
    ],
)
def test_redirects_are_judged_like_urls(location: bytes, error: type[MediaError]) -> None:
    """A Location that leaves the allowed schemes or is malformed is refused as a client's URL is."""
    base = parse_url("https://example.com/x", WEB, FIELD)
    with pytest.raises(error):
        resolve_redirect(base, location, WEB, FIELD)
