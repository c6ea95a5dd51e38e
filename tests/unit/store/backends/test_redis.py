"""Values in Redis, against a real server."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from redis import exceptions

from tests.support.redis_server import NO_REDIS, redis_binary, redis_server
from tests.support.store_behaviour import StoreBehaviour
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.backends.redis import RedisStore
from ts_stateful.store.base import Capacity, Store, StoreUnavailable

_TIMEOUT_S = 20.0  # for a call, on a machine that is busy


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Start a server for all tests of this file."""
    binary = redis_binary()
    if binary is None:
        pytest.skip(NO_REDIS)
    with redis_server(binary) as url:
        yield url


@pytest.fixture
def prefix() -> str:
    """Return the prefix of a test's keys."""
    return f"test:{secrets.token_hex(8)}:"


@pytest.fixture
def redis_store(url: str, prefix: str) -> Iterator[RedisStore]:
    """Return an empty store."""
    store = RedisStore(f"{url}?prefix={prefix}", timeout_s=_TIMEOUT_S)
    yield store
    store.close()


class TestRedisStore(StoreBehaviour):
    """The contract of every store."""

    @pytest.fixture
    def store(self, redis_store: RedisStore) -> Store:
        """Return an empty store."""
        return redis_store


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    """Return another client of the same server."""
    with redis.Redis.from_url(url) as client:
        yield client


def test_a_session_is_one_hash_with_one_life(
    redis_store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    """The longest of all calls. Another session has its own."""
    redis_store.create("sessions/a/00000000", b"x", ttl_s=100)
    redis_store.create("sessions/a/00000001", b"x", ttl_s=1000)
    redis_store.create("sessions/a/00000001", b"x", ttl_s=10)
    redis_store.create("sessions/b/00000000", b"x")
    redis_store.create("blobs/c", b"x", ttl_s=50)
    lives = {
        key.decode().removeprefix(prefix): client.ttl(key)
        for key in client.scan_iter(match=f"{prefix}*")
    }
    assert lives.pop("sessions/b/") == -1
    assert 100 < int(str(lives.pop("sessions/a/"))) <= 1000
    assert 10 < int(str(lives.pop("blobs/c"))) <= 50
    assert not lives


def test_the_server_removes_an_expired_session(
    redis_store: RedisStore, client: redis.Redis
) -> None:
    """By itself; then its keys are free."""
    redis_store.create("sessions/a/00000000", b"x", ttl_s=0.0001)
    for _ in range(100_000):
        if redis_store.get("sessions/a/00000000") is None:
            break
    assert not redis_store.list("sessions/a")
    assert redis_store.create("sessions/a/00000000", b"y")


class WritesLate:
    """Servers that carry out a write when they are asked to."""

    def __init__(self, servers: Any) -> None:
        self._servers = servers
        self.late: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._servers, name)

    def write(self, name: str, *command: Any) -> None:
        """Keep a command for later."""
        self.late.append(partial(self._servers.write, name, *command))


@pytest.mark.parametrize("has_values", [True, False])
def test_a_late_removal_spares_a_later_session(
    url: str, prefix: str, redis_store: RedisStore, has_values: bool
) -> None:
    """Its id began again after the removal had no answer, and another one had it."""
    other = RedisStore(f"{url}?prefix={prefix}", timeout_s=_TIMEOUT_S)
    servers: Any = WritesLate(other._servers)
    other._servers = servers
    for name in ("0", "1") if has_values else ():
        redis_store.create(f"sessions/a/{name}", b"earlier")
    other.delete("sessions/a")
    redis_store.delete("sessions/a")
    redis_store.create("sessions/a/0", b"later")
    servers.late[0]()
    assert redis_store.list("sessions/a") == ["sessions/a/0"]
    other.close()


def test_stores_with_other_prefixes_are_separate(url: str, redis_store: RedisStore) -> None:
    """Several models can share a server."""
    other = RedisStore(f"{url}?prefix=test:other:", timeout_s=_TIMEOUT_S)
    other.delete("sessions")
    redis_store.create("sessions/a/0", b"x")
    assert other.create("sessions/a/0", b"y")
    redis_store.delete("sessions")
    assert other.list("sessions") == ["sessions/a/0"]
    other.close()


def test_many_keys_are_listed_and_removed(redis_store: RedisStore) -> None:
    """More than one page of a search."""
    keys = sorted(f"blobs/{n}" for n in range(1500))
    for key in keys:
        redis_store.create(key, b"")
    assert redis_store.list("blobs") == keys
    redis_store.delete("blobs")
    assert not redis_store.list("blobs")


def test_a_server_that_is_down_is_reported() -> None:
    """With the remedy, and without the password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # no process listens on it
        store = RedisStore(f"redis://user:secret@127.0.0.1:{port}/0", timeout_s=_TIMEOUT_S)
        for call in (
            lambda: store.create("a", b""),
            lambda: store.get("a"),
            lambda: store.list("a"),
        ):
            with pytest.raises(StoreUnavailable, match="can be reached") as caught:
                call()
            assert "secret" not in str(caught.value)


def test_a_server_that_does_not_answer_is_reported() -> None:
    """It accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = RedisStore(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match="timeoutSec"):
            store.create("a", b"")


def test_calls_do_not_wait_in_turn_for_a_server_that_hangs() -> None:
    """One of them does. When it goes on, what was asked of it meanwhile may be done."""
    binary = redis_binary()
    if binary is None:
        pytest.skip(NO_REDIS)
    with redis_server(binary) as url, contextlib.closing(RedisStore(url, timeout_s=1)) as store:
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            process = client.info("server")["process_id"]
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="timeoutSec"):
            store.create("sessions/a/00000000", b"x")
        with contextlib.suppress(exceptions.TimeoutError), store._gate.passed():
            for _ in range(100):
                with pytest.raises(StoreUnavailable, match="another call waits"):
                    store.create("sessions/b/00000000", b"x")
            raise exceptions.TimeoutError
        os.kill(process, signal.SIGCONT)
        assert store.create("sessions/c/00000000", b"x")
        assert store.list("sessions/b") == []


def test_a_primary_that_became_a_replica_is_left() -> None:
    """Its connections stay. The name of the URL leads to the new primary by then."""

    def serve(listener: socket.socket) -> None:
        for reply in (b"-READONLY You can't write against a read only replica.", b":1"):
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(2**16):
                    replies = [reply] if b"EVAL" in data else [b"+OK"] * data.count(b"SETINFO")
                    connection.sendall(b"".join(one + b"\r\n" for one in replies))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2"
        with contextlib.closing(RedisStore(url, timeout_s=_TIMEOUT_S)) as store:
            assert store.create("sessions/a/00000000", b"x")


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        (["--requirepass", "secret"], "user and password"),
        (["--maxmemory", "1", "--maxmemory-policy", "noeviction"], "maxmemory"),
        (["--min-replicas-to-write", "1"], "server's log"),
    ],
)
def test_a_refusal_of_the_server_is_reported(options: list[str], cure: str) -> None:
    """With the reason and the remedy."""
    binary = redis_binary()
    if binary is None:
        pytest.skip(NO_REDIS)
    with redis_server(binary, *options) as url:
        store = RedisStore(url, timeout_s=_TIMEOUT_S)
        with pytest.raises(StoreUnavailable, match=cure):
            store.create("sessions/a/0", b"x")
        store.close()


@pytest.mark.parametrize("url", ["redis://localhost/0?prefix=a*", "redis://u:secret@h/0?colour=1"])
def test_a_url_of_another_form_is_refused(url: str) -> None:
    """Without its password."""
    with pytest.raises(ConfigError) as caught:
        RedisStore(url, timeout_s=1)
    assert "secret" not in str(caught.value)


def test_a_server_that_forgets_sessions_is_named_once(
    redis_store: RedisStore, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """With managed servers that is the default. Without a limit nothing is forgotten."""
    client.config_set("maxmemory-policy", "volatile-lru")
    try:
        redis_store.capacity()
        assert not caplog.messages
        client.config_set("maxmemory", 100_000_000)
        for _ in range(2):
            redis_store.capacity()
        (message,) = caplog.messages
        assert "set maxmemory-policy noeviction" in message
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


def test_its_capacity_is_maxmemory(redis_store: RedisStore, client: redis.Redis) -> None:
    """As far as the server has a limit."""
    assert redis_store.capacity() == Capacity()
    client.config_set("maxmemory", 100_000_000)
    try:
        capacity = redis_store.capacity()
        assert capacity.total_bytes == 100_000_000
        assert 0 < capacity.free_bytes < 100_000_000
        client.config_set("maxmemory", 1)
        assert redis_store.capacity() == Capacity(1, 0)
    finally:
        client.config_set("maxmemory", 0)
