"""Erasure of a session from a store, whatever the store, the session and the moment."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import redis

from tests.support import sums
from tests.support.harness import Harness
from tests.support.memory_store import MemoryStore
from tests.support.pictures import noise
from tests.support.redis_server import NO_REDIS, redis_binary, redis_server
from tests.support.s3_server import s3_server
from tests.support.store_engines import FailingStore, ask, code, expire
from tests.support.sums import Start, add, starter, total
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Close, Fork
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.backends.redis import RedisStore
from ts_stateful.store.backends.s3 import S3Store
from ts_stateful.store.backends.sealed import SealedStore
from ts_stateful.store.base import Store, StoreUnavailable

PREFIXES = ("sessions", "adopted", "kv", "blobs")
ERASE = Close(session_id="s", erase=True)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    binary = redis_binary()
    if binary is None:
        pytest.skip(NO_REDIS)
    with redis_server(binary) as url:
        yield url


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of an empty bucket."""
    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/dev/null")
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="erasure")
        yield f"s3://erasure/{secrets.token_hex(8)}?endpoint_url={endpoint}&region=us-east-1"


@pytest.fixture(params=["memory", "file", "sealed", "redis", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of each kind, without values."""
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "file":
        made = FileStore(tmp_path / "store")
    elif request.param == "sealed":
        made = SealedStore(FileStore(tmp_path / "store"), [bytes(32)])
    elif request.param == "redis":
        prefix = f"test:{secrets.token_hex(8)}:"
        made = RedisStore(f"{request.getfixturevalue('redis_url')}?prefix={prefix}", timeout_s=20.0)
    else:
        made = S3Store(request.getfixturevalue("bucket"), timeout_s=20.0)
        for name in (*PREFIXES, "ended"):
            made.delete(name)
    yield made
    made.close()


def left(store: Store, session_id: str) -> list[str]:
    """Return all keys of a session, but for the mark of its end."""
    keys = [key for prefix in PREFIXES for key in store.list(prefix)]
    return [key for key in keys if session_id in key.split("/")]


def test_a_closed_session_takes_its_images_and_those_of_no_other(
    model: Model, any_store: Store
) -> None:
    """Two sessions show the same image, and one has a fork; the others go on at another engine."""
    first, second = (Harness(model, store=any_store) for _ in range(2))
    second.media = first.media
    for session_id in ("s", "other"):
        first.open(session_id, [noise(1)])
    first.ask(ask("What is it?"))
    assert first.ask(Fork(session_id="s", new_session_id="fork"))["session_id"] == "fork"
    # An entry for the opening, one for the turn where there is one, and the image; a fork is one entry.
    assert [len(left(any_store, name)) for name in ("s", "other", "fork")] == [3, 2, 2]
    assert first.ask(Close(session_id="s"))["closed"]
    assert left(any_store, "s") == []
    assert any_store.list("blobs") == []
    fresh = Harness(model, store=any_store)  # without the image in memory
    for session_id in ("other", "fork"):
        answer = fresh.prompt(session_id, "And now?", max_new_tokens=4)
        assert answer["timing"]["restored_from"] == "store"
    assert code(fresh.ask(ask())) == "session_closed"


def test_an_ended_session_is_erased_again(model: Model, any_store: Store) -> None:
    """Of one that is unknown, closed or damaged nothing is left, and the answer is always the same."""
    harness = Harness(model, store=any_store)
    closed = {"session_id": "s", "closed": True}
    assert harness.ask(ERASE) == closed
    harness.open("s", [noise(2)])
    harness.ask(ask("What is it?"))
    any_store.create("kv/s/piece", b"states")
    image, turn = any_store.list("sessions/s")[-1], "sessions/s/00000001"
    kept = {key: any_store.get(key) for key in (image, turn)}
    assert harness.ask(ERASE) == closed
    assert left(any_store, "s") == []
    for key, data in kept.items():  # as if the first time had been interrupted
        assert data is not None
        any_store.create(key, data)
    any_store.create("sessions/s/00000000", b"damaged")
    other = Harness(model, store=any_store)
    refused = other.ask(ask())
    assert code(refused) == "internal"
    assert "`close` with `erase`" in refused["error"]["message"]
    assert other.ask(ERASE) == closed
    assert left(any_store, "s") == []


class Interrupted(FailingStore):
    """A store whose server is killed after so many removals."""

    num_removals = 1_000

    def delete(self, prefix: str) -> None:
        """Remove as long as the server runs."""
        if self.num_removals == 0:
            raise StoreUnavailable("the server was killed", "start it")
        self.num_removals -= 1
        super().delete(prefix)


@pytest.mark.parametrize("num_removals", range(5))
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_an_interrupted_erasure_can_be_repeated(
    model: Model, num_removals: int, is_elsewhere: bool
) -> None:
    """Until the log is removed the session is open with all its images, and until the end the only answer is an error."""
    store = Interrupted()
    harness = Harness(model, store=store)
    harness.open("s", [noise(3)])
    harness.ask(ask("What is it?"))
    store.create("kv/s/piece", b"states")
    store.num_removals = num_removals
    answer = harness.ask(ERASE)
    store.num_removals = 1_000
    is_whole = len(store.list("sessions/s")) == 3
    assert is_whole or left(store, "s") == []
    assert ("error" in answer) == (num_removals < 4)
    other = Harness(model, store=store)
    if is_whole and is_elsewhere:
        assert other.prompt("s", "And now?", max_new_tokens=4)["turn"] == 2
    again = (other if is_elsewhere else harness).ask(ERASE)
    assert again["closed"]
    assert left(store, "s") == []


def test_a_plain_close_is_answered_without_the_store(first: Harness, store: FailingStore) -> None:
    """As ever; with `erase`, the client learns of it and can repeat it."""
    first.open("s", [noise(4)])
    store.fails = True
    assert first.ask(Close(session_id="s"))["closed"]
    failed = first.ask(ERASE)
    assert (code(failed), failed["error"]["retryable"]) == ("store_unavailable", True)
    store.fails = False
    assert left(store, "s") != []
    assert first.ask(ERASE)["closed"]
    assert left(store, "s") == []


@pytest.mark.parametrize("expires", [False, True])
def test_a_removal_that_failed_is_tried_again(
    model: Model, first: Harness, store: FailingStore, expires: bool
) -> None:
    """By the engine, so that a session whose close was answered does not go on after a restart."""
    first.open("s", [noise(4)])
    store.fails = True
    if expires:
        expire(first)
    else:
        assert first.ask(Close(session_id="s"))["closed"]
    for fails in (True, False):
        store.fails = fails
        first.clock.now += 5
        first.engine.tick()
        first.run()
        store.fails = False
        assert bool(left(store, "s")) == fails
    expected = "session_expired" if expires else "session_closed"
    assert code(Harness(model, store=store).ask(ask())) == expected


def test_a_full_redis_can_be_emptied(model: Model, redis_url: str) -> None:
    """By closing sessions, with `erase` or without."""
    store = RedisStore(f"{redis_url}?prefix=full:", timeout_s=20.0)
    server = redis.Redis.from_url(redis_url)
    harness = Harness(model, store=store)
    for session_id in ("s", "other"):
        harness.open(session_id)
    server.config_set("maxmemory", 1)
    try:
        assert code(harness.ask(ask())) == "store_unavailable"
        assert harness.ask(ERASE)["closed"]
        assert harness.ask(Close(session_id="other"))["closed"]
    finally:
        server.config_set("maxmemory", 0)
    assert not store.list("sessions")
    store.close()
    server.close()


def test_a_new_session_of_the_id_keeps_its_images(
    model: Model, first: Harness, store: FailingStore
) -> None:
    """It may show the same image as the one that was erased."""
    for _ in range(2):
        first.open("s", [noise(5)])
        assert first.ask(ERASE)["closed"]
    first.open("s", [noise(5)])
    assert Harness(model, store=store).prompt("s", "Hi", max_new_tokens=4)["turn"] == 1


def test_an_expired_session_takes_its_images(first: Harness, store: FailingStore) -> None:
    """Not only one that was closed."""
    first.open("s", [noise(6)])
    assert len(left(store, "s")) == 2
    first.clock.now += 61
    first.engine.tick()
    first.run()
    assert left(store, "s") == []


@pytest.fixture
def start(store: FailingStore) -> Start:
    """Starts an engine of the summing model."""
    return starter(store)


def test_a_sequence_is_erased(start: Start, store: FailingStore) -> None:
    """Where it is, elsewhere, and again; one that is damaged too."""
    first, second = start(), start()
    for harness in (first, second, second):
        assert total(first.ask(add(1))) == 1
        assert sums.left(store)
        assert harness.ask(Close(session_id="a", erase=True))["closed"]
        assert not sums.left(store)
        first = start()
    first.ask(add(1))
    entry = max(key for key in sums.left(store) if len(key.rpartition("/")[2]) == 8)
    store.delete(entry)
    store.create(entry, b"damaged")
    assert second.ask(Close(session_id="a", erase=True))["closed"]
    assert not sums.left(store)
