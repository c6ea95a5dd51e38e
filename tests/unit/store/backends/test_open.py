"""Stores by their URL."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.redis_server import NO_REDIS, redis_binary, redis_server
from ts_stateful.config.schema import ConfigError, StoreConfig
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.backends.open import open_store, redacted
from ts_stateful.store.backends.redis import RedisStore
from ts_stateful.store.backends.s3 import S3Store
from ts_stateful.store.base import StoreCorrupt, StoreUnavailable


def test_the_scheme_selects_the_store(tmp_path: Path) -> None:
    """No server is contacted yet."""
    for url, kind in (
        (f"file://{tmp_path}/a%20b", FileStore),
        ("redis://127.0.0.1:1/0", RedisStore),
        ("rediss://127.0.0.1:1/0", RedisStore),
        ("s3://bucket/prefix?region=eu-central-1", S3Store),
    ):
        store = open_store(url)
        assert isinstance(store, kind)
        store.close()
    assert (tmp_path / "a b").is_dir()


@pytest.mark.parametrize("url", ["", "memory", "/dev/shm/x", "http://user:secret@host/", "gs://b"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    """The error lists the known schemes, and leaves out the password."""
    with pytest.raises(ConfigError, match=r"file:///folder.*redis://.*s3://") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["file://", "file:///", "file://host/a", "file:///a?b", "file:a"])
def test_a_folder_has_three_slashes(url: str) -> None:
    """A host, the root and parameters are refused."""
    with pytest.raises(ConfigError, match="three slashes"):
        open_store(url)


@pytest.mark.parametrize("url", ["http://[", "redis://[::1"])
def test_an_invalid_url_is_refused(url: str) -> None:
    """As a wrong setting, not with a crash."""
    with pytest.raises(ConfigError, match="not a URL"):
        open_store(url)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    for module, url in (("redis", "redis://h/0"), ("boto3", "s3://bucket")):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(
            sys.modules, f"ts_stateful.store.backends.{url.split(':')[0]}", raising=False
        )
        extra = url.split(":", maxsplit=1)[0]
        with pytest.raises(ConfigError, match=rf"torchserve-stateful\[{extra}\]"):
            open_store(url)


def test_secrets_are_not_shown() -> None:
    """Logs leave out user, password and parameters of a URL."""
    assert redacted("redis://user:secret@host:1/2?ssl_password=x") == "redis://***@host:1/2?***"
    assert redacted("s3://bucket/a") == "s3://bucket/a"
    assert redacted("file:///dev/shm/a") == "file:///dev/shm/a"


def test_the_options_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key seals the values, which cannot be read without it."""
    monkeypatch.setenv("THE_KEY", "A" * 43 + "=")
    url = f"file://{tmp_path}/store"
    assert open_store(url, StoreConfig(encryption_key_env="THE_KEY")).create("a", b"plain text")
    raw = open_store(url).get("a")
    assert raw is not None
    assert b"plain text" not in raw
    with pytest.raises(ConfigError, match=r"NO_KEY.*openssl rand"):
        open_store(url, StoreConfig(encryption_key_env="NO_KEY"))
    assert open_store(url).create("b", b"plain text")
    with pytest.raises(StoreCorrupt, match="not encrypted"):
        open_store(url, StoreConfig(encryption_key_env="THE_KEY")).get("b")


def test_the_password_of_redis_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that requires it accepts the store, and refuses one with another password."""
    binary = redis_binary()
    if binary is None:
        pytest.skip(NO_REDIS)
    options = StoreConfig(password_env="TS_TEST_PASSWORD", timeout_sec=20)
    with redis_server(binary, "--requirepass", "p@ss/word") as url:
        monkeypatch.setenv("TS_TEST_PASSWORD", "p@ss/word")
        store = open_store(url, options)
        assert store.create("a", b"x")
        assert store.get("a") == b"x"
        store.close()
        monkeypatch.setenv("TS_TEST_PASSWORD", "other")
        store = open_store(url, options)
        with pytest.raises(StoreUnavailable, match="passwordEnv"):
            store.get("a")
        store.close()


@pytest.mark.parametrize(
    ("url", "value", "message"),
    [
        ("redis://127.0.0.1:1/0", "", "TS_TEST_PASSWORD is not set"),
        ("redis://user:secret@127.0.0.1:1/0", "other", "remove one"),
        ("file:///x", "other", "takes no password"),
    ],
)
def test_a_password_that_cannot_be_used_is_refused(
    url: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error shows a password."""
    monkeypatch.setenv("TS_TEST_PASSWORD", value)
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url, StoreConfig(password_env="TS_TEST_PASSWORD"))
    assert "secret" not in str(caught.value)
    assert "other" not in str(caught.value)
