"""Values in a Redis Cluster and at a server with replicas, against real servers."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed
from tests.support.ports import free_port
from tests.support.redis_cluster import NO_CLUSTER, RedisCluster, cluster_binary, redis_cluster
from tests.support.redis_server import NO_REDIS, redis_binary, redis_server
from tests.support.store_behaviour import StoreBehaviour
from tests.support.worker import eventually
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.backends.redis import RedisStore
from ts_stateful.store.base import Capacity, Store, StoreUnavailable

_TIMEOUT_S = 20.0  # for a call, on a machine that is busy
_FIRST = "sessions/a/00000000"
# Of docs/store.md, with the prefix of these tests.
_RIGHTS = "~test:* -@all +@connection +@scripting +@keyspace +@string +@hash -@dangerous +info +cluster|slots"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Start a cluster for all tests of this file."""
    binary = cluster_binary()
    if binary is None:
        pytest.skip(NO_CLUSTER)
    with redis_cluster(binary) as cluster:
        yield cluster


@pytest.fixture
def server_url() -> Iterator[str]:
    """Start a server without a cluster. Return its URL."""
    binary = redis_binary()
    if binary is None:
        pytest.skip(NO_REDIS)
    with redis_server(binary) as url:
        yield url


@pytest.fixture
def url(cluster: RedisCluster) -> str:
    """Return the URL of an empty store, whose writes wait for a replica."""
    return f"{cluster.url}&replicas=1&prefix=test:{secrets.token_hex(8)}:"


@pytest.fixture
def cluster_store(url: str) -> Iterator[RedisStore]:
    """Return that store."""
    with contextlib.closing(RedisStore(url, timeout_s=_TIMEOUT_S)) as store:
        yield store


class TestClusterStore(StoreBehaviour):
    """The contract of every store, in a cluster."""

    @pytest.fixture
    def store(self, cluster_store: RedisStore) -> Store:
        """Return an empty store."""
        return cluster_store


def test_all_of_a_session_is_in_one_slot(
    cluster: RedisCluster, cluster_store: RedisStore, url: str
) -> None:
    """Its log, its KV states and its marks, by the id in braces. Other sessions are elsewhere."""
    for key in ("sessions/a/00000000", "kv/a/1", "adopted/a/1", "ended/a", "sessions/b/00000000"):
        assert cluster_store.create(key, b"x")
    prefix = url.partition("prefix=")[2]
    slots: dict[str, set[int]] = {"a": set(), "b": set()}
    for port in cluster.living:
        with cluster.client(port) as client:
            for key in client.scan_iter(match=f"{prefix}*"):
                slot = int(client.execute_command("CLUSTER KEYSLOT", key))
                slots[key.decode().partition("{")[2][0]].add(slot)
    assert len(slots["a"]) == len(slots["b"]) == 1
    assert slots["a"] != slots["b"]


@pytest.mark.parametrize("knows", [True, False], ids=["known", "unknown"])
def test_a_slot_that_moves_is_followed(
    cluster: RedisCluster,
    cluster_store: RedisStore,
    url: str,
    knows: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it moves, new keys are written at its next owner; after that, all are, even before other servers know it."""
    session = secrets.token_hex(16)  # alone in its slot
    name = f"{url.partition('prefix=')[2]}sessions/{{{session}}}/"
    keys = [f"sessions/{session}/{n:08d}" for n in range(2)]
    assert cluster_store.get(keys[0]) is None  # the client knows the owner
    source = cluster.owner(name)
    owners = (cluster.owner(str(n)) for n in range(100))
    target = next(owner for owner in owners if owner != source)
    with cluster.client(source) as giver, cluster.client(target) as taker:
        slot = int(giver.execute_command("CLUSTER KEYSLOT", name))
        ids = [cluster.id_of(port) for port in (source, target)]
        taker.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        giver.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        assert cluster_store.create(keys[0], b"x")
        assert not cluster_store.create(keys[0], b"y")
        for server in (taker, giver):
            server.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        if not knows:
            nodes = cluster_store._servers.client.nodes_manager
            monkeypatch.setattr(nodes, "initialize", lambda *_, **__: None)
        assert cluster_store.create(keys[1], b"z")
        assert taker.hlen(name) == 2
    assert cluster_store.list(f"sessions/{session}") == keys


def test_the_rights_of_the_documents_are_enough(cluster: RedisCluster) -> None:
    """For every call of a store in a cluster, with and without replicas."""
    for port in cluster.living:
        with cluster.client(port) as client:
            client.execute_command("ACL SETUSER", "node", "on", ">secret", *_RIGHTS.split())
    url = cluster.url.replace("://", "://node:secret@")
    for replicas in (0, 1):
        prefix = f"test:{secrets.token_hex(8)}:"
        address = f"{url}&prefix={prefix}&replicas={replicas}"
        with contextlib.closing(RedisStore(address, timeout_s=_TIMEOUT_S)) as store:
            assert store.create(_FIRST, b"x", ttl_s=100)
            assert store.get_many([_FIRST]) == [b"x"]
            assert store.list("sessions") == [_FIRST]
            store.delete(_FIRST)
            store.delete("sessions/a")
            assert store.get(_FIRST) is None
            assert store.capacity() == Capacity()


def test_the_capacity_is_that_of_the_fullest_server(
    cluster: RedisCluster, cluster_store: RedisStore
) -> None:
    """Of those that take writes and have a limit."""
    first, second = cluster.living[:2]
    for port, limit in ((first, 10**9), (second, 10**8)):
        with cluster.client(port) as client:
            client.config_set("maxmemory", limit)
    try:
        assert cluster_store.capacity().total_bytes == 10**8
    finally:
        for port in (first, second):
            with cluster.client(port) as client:
                client.config_set("maxmemory", 0)


def test_a_cluster_without_its_parameter_is_named(cluster: RedisCluster) -> None:
    """By the remedy, in the error for a session of another server."""
    plain = cluster.url.partition("?")[0]
    keys = [f"sessions/{n}/0" for n in range(20)]
    with (
        contextlib.closing(RedisStore(plain, timeout_s=_TIMEOUT_S)) as store,
        pytest.raises(StoreUnavailable, match="add cluster=1"),
    ):
        store.get_many(keys)


def test_a_server_that_is_no_cluster_is_named(server_url: str) -> None:
    """Each call asks it again."""
    with contextlib.closing(RedisStore(f"{server_url}?cluster=1", timeout_s=_TIMEOUT_S)) as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="belongs to a cluster"):
                store.create(_FIRST, b"x")


def test_a_cluster_speaks_tls(tmp_path: Path) -> None:
    """To each of its servers, with the certificates and the password that the store has."""
    binary = cluster_binary()
    if binary is None or not has_openssl():
        pytest.skip(NO_CLUSTER if binary is None else NO_OPENSSL)
    port, certificate = free_port(), self_signed(tmp_path / "tls.crt")
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-cluster", "yes"]
    for name, file in (("cert", certificate), ("key", f"{certificate}.key")):
        tls += [f"--tls-{name}-file", str(file)]
    alone = ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]
    files = ["--tls-ca-cert-file", str(certificate), "--cluster-port", str(free_port())]
    with redis_server(binary, *tls, *alone, *files, "--requirepass", "secret") as url:
        plain = url.replace("://", "://:secret@")
        with redis.Redis.from_url(plain) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        address = f"rediss://127.0.0.1:{port}/0?cluster=1&ssl_ca_certs={certificate}"
        store = RedisStore(address, timeout_s=_TIMEOUT_S, password="secret")
        with contextlib.closing(store):
            assert store.create(_FIRST, b"x")
            assert store.get_many([_FIRST]) == [b"x"]
            assert store.list("sessions") == [_FIRST]


def acknowledged_by(store: Store, session: str, written: list[str], stop: threading.Event) -> None:
    """Write one entry after the other, and note those that the store has acknowledged."""
    for position in itertools.count():
        key = f"sessions/{session}/{position:08d}"
        if stop.is_set():
            return
        with contextlib.suppress(StoreUnavailable):
            if store.create(key, key.encode()):
                written.append(key)


def accepts(store: Store, key: str) -> bool:
    """Return True if the store takes a value."""
    with contextlib.suppress(StoreUnavailable):
        return store.create(key, b"x")
    return False


def test_nothing_acknowledged_is_lost_with_a_server(
    cluster: RedisCluster, cluster_store: RedisStore, url: str
) -> None:
    """The owner of sessions is killed while four callers write them. The store goes on when a replica has its place.

    Writes that wait for a replica go on when there is one again.
    """
    prefix = url.partition("prefix=")[2]
    dead = cluster.owner(f"{prefix}sessions/{{0}}/")
    ids = [str(n) for n in range(100) if cluster.owner(f"{prefix}sessions/{{{n}}}/") == dead]
    written: list[str] = []
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(stop.set)
        for session in ids[:4]:
            pool.submit(acknowledged_by, cluster_store, session, written, stop)
        eventually(lambda: len(written) > 100)
        cluster.kill(dead)
        plain = RedisStore(url.replace("&replicas=1", ""), timeout_s=_TIMEOUT_S)
        stack.enter_context(contextlib.closing(plain))
        new_key = f"sessions/{ids[0]}/new"
        eventually(lambda: accepts(plain, new_key))
        eventually(lambda: cluster.owner(f"{prefix}sessions/{{0}}/") != dead)
        before = len(written)
        assert plain.get_many(written[:before]) == [key.encode() for key in written[:before]]
        cluster.start(dead)
        eventually(lambda: len(written) > before)
    assert cluster_store.get_many(written) == [key.encode() for key in written]


def test_a_write_without_its_replicas_is_not_acknowledged(server_url: str) -> None:
    """The error has their number; the server itself may have the value."""
    with (
        contextlib.closing(RedisStore(f"{server_url}?replicas=1", timeout_s=2)) as store,
        pytest.raises(StoreUnavailable, match=r"0 replicas .* of 1 .*lower `replicas`"),
    ):
        store.create(_FIRST, b"x")


def test_a_write_waits_for_the_replicas_of_a_server(server_url: str) -> None:
    """A replica has what was written, and has not what was removed."""
    binary, port = redis_binary(), server_url.rpartition(":")[2].partition("/")[0]
    assert binary is not None
    with (
        redis_server(binary, "--replicaof", "127.0.0.1", port) as url,
        redis.Redis.from_url(url) as replica,
        contextlib.closing(RedisStore(f"{server_url}?replicas=1", timeout_s=_TIMEOUT_S)) as store,
    ):
        eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        assert store.create("sessions/b/00000000", b"x")
        assert replica.hget("ts-stateful:sessions/b/", "00000000") == b"x"
        store.delete("sessions/b")
        assert not replica.exists("ts-stateful:sessions/b/")


@contextlib.contextmanager
def sentinel(binary: str, folder: Path, primary: int) -> Iterator[int]:
    """Start a sentinel that calls a server `chat`. Yield its port when it knows a replica."""
    port, file = free_port(), folder / "sentinel.conf"
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {folder}",
        f"sentinel monitor chat 127.0.0.1 {primary} 1",
    ]
    file.write_text("\n".join(lines) + "\n")
    with (
        subprocess.Popen([binary, str(file), "--sentinel"], stdout=subprocess.DEVNULL) as process,
        redis.Redis(port=port) as client,
    ):
        try:
            eventually(lambda: succeeds(lambda: master_of(client)["num-slaves"]))
            yield port
        finally:
            process.kill()


def master_of(client: redis.Redis) -> Any:
    return client.execute_command("SENTINEL MASTER", "chat")


def succeeds(call: Callable[[], Any]) -> bool:
    """Return True if Redis takes a call, and answers it with something that is true."""
    with contextlib.suppress(redis.RedisError):
        return bool(call())
    return False


def test_sentinels_name_the_primary(server_url: str, tmp_path: Path) -> None:
    """Also after a failover, and where the first one of them does not run. The primary has its database and password."""
    binary, primary = redis_binary(), int(server_url.rpartition(":")[2].partition("/")[0])
    assert binary is not None
    with (
        redis_server(binary, "--replicaof", "127.0.0.1", str(primary)) as url,
        redis.Redis.from_url(server_url) as old,
        sentinel(binary, tmp_path, primary) as port,
        redis.Redis(port=port) as asked,
    ):
        address = f"redis://127.0.0.1:{free_port()},127.0.0.1:{port}/3?sentinel=chat&replicas=1"
        with contextlib.closing(RedisStore(address, timeout_s=_TIMEOUT_S)) as store:
            # From Redis 7 on, a primary lets replicas wait for others before it copies its data.
            eventually(lambda: old.wait(1, 100))
            assert store.create(_FIRST, b"x")
            # The sentinel may not have examined the replica yet, and closes all connections to the old primary.
            fail_over = partial(asked.execute_command, "SENTINEL FAILOVER", "chat")
            eventually(lambda: succeeds(fail_over))
            eventually(lambda: succeeds(lambda: old.info("replication")["role"] == "slave"))
            eventually(lambda: accepts(store, f"{_FIRST}/more"))
            assert store.get(_FIRST) == b"x"
        with redis.Redis.from_url(url.replace("/0", "/3")) as new:
            assert new.hlen("ts-stateful:sessions/a/") == 2


def num_connections(server: socket.socket) -> int:
    """Return the number of connections that were made since the last call."""
    server.setblocking(False)
    number = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            number += 1
    return number


def test_sentinels_that_do_not_answer_are_asked_once() -> None:
    """At each of two attempts. The reason names what is looked for."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        hosts = ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in silent)
        store = RedisStore(f"redis://{hosts}/0?sentinel=chat", timeout_s=0.4)
        stack.callback(store.close)
        with pytest.raises(StoreUnavailable, match=r"No master found for 'chat': check that a se"):
            store.get(_FIRST)
        assert [num_connections(server) for server in silent] == [2, 2]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("/0?cluster=yes", "cluster is 0 or 1"),
        ("/0?replicas=-1", "replicas is 0 to 9"),
        ("/0?replicas=x", "replicas is 0 to 9"),
        ("/3?cluster=1", "only the database 0"),
        ("/0?cluster=1&colour=1", "not a URL of Redis"),
        ("/0?sentinel=chat&colour=1", "not a URL of Redis"),
        ("/0?sentinel=chat&cluster=1", "a cluster has no sentinels"),
    ],
)
def test_parameters_of_another_form_are_refused(parameters: str, message: str) -> None:
    """Before any server is contacted, and without the password."""
    with pytest.raises(ConfigError, match=message) as caught:
        RedisStore(f"redis://u:secret@127.0.0.1:1{parameters}", timeout_s=1)
    assert "secret" not in str(caught.value)
