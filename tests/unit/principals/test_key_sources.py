"""Places of key sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.web import Site, StepClock, answer, endless, redirect
from ts_stateful.principals.key_sources import KeySource, KeysUnreadable


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server."""
    site = Site()
    yield site
    site.stop()


def test_a_file_is_read_again(tmp_path: Path) -> None:
    """An operator replaces it; a relative one is in the archive."""
    source = KeySource("keys.json", 1.0, tmp_path)
    with pytest.raises(KeysUnreadable, match=r"keys\.json"):
        source.read()
    for data in (b"1", b"2"):
        (tmp_path / "keys.json").write_bytes(data)
        assert source.read() == data


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    """It is no key set."""
    (tmp_path / "keys.json").write_bytes(b" " * 1_000_001)
    with pytest.raises(KeysUnreadable, match="larger"):
        KeySource("keys.json", 1.0, tmp_path).read()


def test_a_url_is_read(site: Site, tmp_path: Path) -> None:
    """With one request."""
    site.routes["/keys"] = answer(b"{}")
    assert KeySource(f"{site.url}/keys", 5.0, tmp_path).read() == b"{}"
    assert site.paths == ["/keys"]


def test_redirects_errors_and_endless_answers_are_refused(site: Site) -> None:
    """A redirect could lead to another issuer."""
    site.routes["/moved"] = redirect(f"{site.url}/keys")
    site.routes["/wrong"] = answer(b"", status=500, Content_Length="0")
    site.routes["/endless"] = endless(b"\r\n", b" " * 10_000)
    for path in site.routes.keys() - {"/"}:
        with pytest.raises(KeysUnreadable):
            KeySource(f"{site.url}{path}", 5.0, Path()).read()
    assert "/keys" not in site.paths


def test_a_slow_answer_is_given_up(site: Site) -> None:
    """Even if a byte comes every now and then."""
    site.routes["/slow"] = answer(b"{}")
    with pytest.raises(KeysUnreadable, match="not sent in 5 s"):
        KeySource(f"{site.url}/slow", 5.0, Path(), StepClock(10.0)).read()


@pytest.mark.parametrize("proxy", [":::", "ftp://proxy"])
def test_a_malformed_proxy_is_reported(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables that name one."""
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(KeysUnreadable, match="http_proxy, https_proxy, all_proxy or no_proxy"):
        KeySource("https://issuer.example/keys", 1.0, Path(), FakeClock()).read()


def test_a_missing_server_is_reported() -> None:
    """With its URL."""
    with pytest.raises(KeysUnreadable, match=r"127\.0\.0\.1:1"):
        KeySource("http://127.0.0.1:1/keys", 1.0, Path(), FakeClock()).read()
