"""The servers of a Redis store: one with its replicas, or a cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from ts_stateful.config.schema import ConfigError
from ts_stateful.store.base import StoreUnavailable

__all__ = ["ClusterServers", "OneServer", "RedisAddress"]

# Steps of a call, each with its own timeout: connecting and the reply, twice, as an idle connection may have died. A client of
# a cluster also asks another server for the owners of slots.
_STEPS = 4
_CLUSTER_STEPS = 8
_WAIT_SHARE = 0.8  # of a step: the server reports missing replicas before the connection times out
_TRIES = 2
_SENTINEL_PORT = 26379
_FORM = "write it like redis://user:password@host:6379/0?prefix=ts-stateful:"
_CHANGES = (
    exceptions.MovedError,
    exceptions.ClusterDownError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
)


class RedisAddress(NamedTuple):
    """A URL without the parameters of this package: `prefix`, `cluster`, `replicas` and `sentinel`."""

    url: str
    prefix: str
    is_cluster: bool
    replicas: int
    sentinel: str  # the name by which sentinels at the URL know the primary; empty: the URL is that of the server

    @classmethod
    def of(cls, url: str, default_prefix: str) -> RedisAddress:
        """Read a URL.

        Raises:
            ConfigError: a parameter has another form.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = options.pop("prefix", default_prefix)
        cluster, replicas = options.pop("cluster", "0"), options.pop("replicas", "0")
        if cluster not in ("0", "1"):
            raise ConfigError(f"handler.store.url: cluster is 0 or 1, not {cluster!r}")
        if not (replicas.isdecimal() and int(replicas) < 10):
            raise ConfigError(f"handler.store.url: replicas is 0 to 9, not {replicas!r}")
        sentinel = options.pop("sentinel", "")
        if cluster == "1" and sentinel:
            raise ConfigError("handler.store.url: a cluster has no sentinels; remove `sentinel`")
        if cluster == "1" and parts.path not in ("", "/", "/0"):
            raise ConfigError("handler.store.url: a cluster has only the database 0; write /0")
        rest = parts._replace(query=urlencode(options)).geturl()
        return cls(rest, prefix, cluster == "1", int(replicas), sentinel)


class OneServer:
    """A server that takes all writes, and its replicas. Any thread may use it; `client` is for reads.

    Raises:
        ConfigError: the URL has another form.
    """

    def __init__(self, address: RedisAddress, *, timeout_s: float, password: str | None) -> None:
        step_s = timeout_s / _STEPS
        self._replicas, self._wait_s = address.replicas, step_s * _WAIT_SHARE
        self.client: Any = _client(address.url, step_s, password, address.sentinel)

    def write(self, name: str, *command: Any) -> Any:
        """Run a command that changes the key `name` alone, or others of its slot. Return when the replicas have it.

        Raises:
            StoreUnavailable: too few replicas have it in time. The server itself has it.
        """
        if not self._replicas:
            return self.client.execute_command(*command)
        return _replicated(self.client, command, self._replicas, self._wait_s)

    def tagged(self, segment: str) -> str:
        """Return a segment of a key so that all keys that have it are in one slot."""
        return segment

    def memory(self) -> Sequence[Mapping[str, Any]]:
        """Return the section `memory` of INFO of each server that takes writes."""
        return [self.client.info("memory")]

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


class ClusterServers:
    """The same for a cluster, which the first call asks for its servers. A segment in braces decides on the slot of a key.

    Raises:
        ConfigError: the URL has another form.
    """

    def __init__(self, address: RedisAddress, *, timeout_s: float, password: str | None) -> None:
        self._address, self._password = address, password
        self._step_s = timeout_s / _CLUSTER_STEPS
        self._lock = threading.Lock()
        self._cluster: RedisCluster | None = None
        _client(address.url, self._step_s, password).close()

    @property
    def client(self) -> Any:
        """See `OneServer`."""
        with self._lock:
            if self._cluster is None:
                self._cluster = RedisCluster.from_url(
                    self._address.url,
                    password=self._password,
                    socket_connect_timeout=self._step_s,
                    socket_timeout=self._step_s,
                    require_full_coverage=False,  # the slots that have an owner are served
                    retry=Retry(NoBackoff(), 1),
                )
            return self._cluster

    def write(self, name: str, *command: Any) -> Any:
        """See `OneServer`."""
        if not self._address.replicas:
            return self.client.execute_command(*command)
        return self._write(name, command, _TRIES)

    def _write(self, name: str, command: tuple[Any, ...], tries: int, moved_to: Any = None) -> Any:
        """Write to the owner of the key's slot. `WAIT` counts for the connection of the write, so redis-py cannot route it."""
        cluster = self.client
        replicas, wait_s = self._address.replicas, self._step_s * _WAIT_SHARE
        try:
            owner = cluster.get_redis_connection(moved_to or cluster.get_node_from_key(name))
            return _replicated(owner, command, replicas, wait_s)
        except _CHANGES as error:
            if tries == 1:
                raise
            cluster.nodes_manager.initialize()
            moved_to = None
            if isinstance(error, exceptions.MovedError):
                # It names the slot's new owner, of which the other servers may not know yet.
                moved_to = cluster.get_node(error.host, error.port)
            return self._write(name, command, tries - 1, moved_to)
        except exceptions.AskError as error:  # the slot is on its way to this server
            importer = cluster.get_redis_connection(cluster.get_node(error.host, error.port))
            return _replicated(importer, command, replicas, wait_s, asking=True)

    def tagged(self, segment: str) -> str:
        """See `OneServer`."""
        return f"{{{segment}}}"

    def memory(self) -> Sequence[Mapping[str, Any]]:
        """See `OneServer`."""
        cluster = self.client
        return [cluster.get_redis_connection(one).info("memory") for one in cluster.get_primaries()]

    def close(self) -> None:
        """See `OneServer`."""
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()


def _client(url: str, step_s: float, password: str | None, sentinel: str = "") -> redis.Redis:
    """Return a client that has connected to nothing yet."""
    options: dict[str, Any] = {
        "password": password,
        "socket_connect_timeout": step_s,
        "socket_timeout": step_s,
        "retry": Retry(NoBackoff(), 1),
        "retry_on_error": [exceptions.ReadOnlyError],  # the name may lead to another primary now
    }
    try:
        at_url = redis.Redis.from_url
        client = _primary(url, sentinel, options) if sentinel else at_url(url, **options)
        client.connection_pool.make_connection()
    except (ValueError, TypeError) as error:
        # The text of redis-py's error may contain the password.
        raise ConfigError(f"handler.store.url: not a URL of Redis; {_FORM}") from error
    return client


def _primary(url: str, name: str, options: dict[str, Any]) -> redis.Redis:
    """Return a client of the server that the sentinels at `url` name, at each connection, without a password."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    sentinels = [parse_url(f"redis://{host}") for host in hosts.split(",")]
    one = parts._replace(netloc=f"{user}{at}{hosts.partition(',')[0]}").geturl()
    options = {**options, **parse_url(one), "ssl": parts.scheme == "rediss"}
    for key in ("host", "port", "connection_class"):
        options.pop(key, None)
    transport = {k: v for k, v in options.items() if k.startswith(("socket_", "ssl"))}
    share_s = options["socket_timeout"] / len(sentinels)
    transport |= dict.fromkeys(("socket_timeout", "socket_connect_timeout"), share_s)
    transport["retry"] = Retry(NoBackoff(), 0)  # else it is ten times, with pauses
    addresses = [(one["host"], one.get("port", _SENTINEL_PORT)) for one in sentinels]
    made: redis.Redis = Sentinel(addresses, sentinel_kwargs=transport, **options).master_for(name)
    return made


def _replicated(
    server: Any, command: tuple[Any, ...], replicas: int, wait_s: float, *, asking: bool = False
) -> Any:
    """Run a command, and wait on the same connection until the replicas have it."""
    page = server.pipeline(transaction=False)
    if asking:
        page.execute_command("ASKING")
    page.execute_command(*command)
    page.execute_command("WAIT", replicas, round(wait_s * 1000))
    *_, result, reached = page.execute()
    if reached < replicas:
        raise StoreUnavailable(
            f"Redis: {reached} replicas have the value, of {replicas} that handler.store.url asks for",
            "check that the replicas run and are connected, or lower `replicas` in handler.store.url",
        )
    return result
