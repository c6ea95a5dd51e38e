"""Values in Redis, or in a server that speaks its protocol.

All values below the same first two segments are the fields of one hash: `sessions/a/00000001` is the field `00000001` of the
hash `ts-stateful:sessions/a/`. So a session is listed, removed and expired as a whole, without a search. A key of one or two
segments, `blobs/<digest>`, is a string: `ts-stateful:blobs/<digest>`. In a cluster the second segment is in braces, so that all
that a session has is in one slot: `ts-stateful:sessions/{a}/`, `ts-stateful:kv/{a}/`.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence

from redis import exceptions
from redis.sentinel import MasterNotFoundError

from ts_stateful.config.schema import ConfigError
from ts_stateful.store.backends.redis_servers import ClusterServers, OneServer, RedisAddress
from ts_stateful.store.base import Capacity, StoreUnavailable, check_key
from ts_stateful.store.gate import Gate

__all__ = ["RedisStore"]

logger = logging.getLogger(__name__)

_PREFIX = "ts-stateful:"
_PREFIX_FORM = re.compile(r"[A-Za-z0-9\-_.:/]*")  # no wildcards of a search
_PAGE = 1000
_NO_BRACES = str.maketrans("", "", "{}")
# Atomic on the server, so that no value is without its expiry. A key keeps the longest life of all calls.
_CREATE = """
local left, made = redis.call('PTTL', KEYS[1])
if ARGV[3] == '' then
    made = redis.call('SETNX', KEYS[1], ARGV[1])
else
    made = redis.call('HSETNX', KEYS[1], ARGV[3], ARGV[1])
end
local ttl_ms = tonumber(ARGV[2])
if ttl_ms == 0 then
    redis.call('PERSIST', KEYS[1])
elseif left == -2 or (left >= 0 and left < ttl_ms) then
    redis.call('PEXPIRE', KEYS[1], ttl_ms)
end
return made
"""
_REMOVE = """
if ARGV[2] == '' then
    return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])
end
return redis.call('HGET', KEYS[1], ARGV[2]) == ARGV[1] and redis.call('HDEL', KEYS[1], ARGV[2])
"""
# One that is carried out late spares a session of the same id that began since.
_DELETE = """
redis.call('UNLINK', KEYS[1])
return redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2] and redis.call('UNLINK', KEYS[2])
"""
_CURES: dict[type[Exception], str] = {
    exceptions.MovedError: "the server belongs to a cluster: add cluster=1 to handler.store.url",
    exceptions.ClusterDownError: "wait until a replica takes the place of a lost server, or run redis-cli --cluster check",
    exceptions.RedisClusterException: "check that a server of handler.store.url runs, and that it belongs to a cluster",
    exceptions.AuthenticationError: "check user and password (handler.store.url, handler.store.passwordEnv)",
    exceptions.NoPermissionError: "allow the user scripting, keyspace, string and hash commands",
    exceptions.OutOfMemoryError: "raise maxmemory of the server, or shorten the sessions' lifetime",
    exceptions.ReadOnlyError: "name the primary in handler.store.url, not a replica",
    exceptions.BusyLoadingError: "wait until the server has loaded its data",
    MasterNotFoundError: "check that a sentinel of handler.store.url runs, and calls the primary as `sentinel` does",
    exceptions.ConnectionError: "check that the server of handler.store.url runs and can be reached",
    exceptions.TimeoutError: "check the server's load and the network, or raise handler.store.timeoutSec",
}


class RedisStore:
    """A database of a Redis server, or a cluster.

    Parameters of the URL: `prefix` begins the names of all keys (`ts-stateful:`). `cluster=1` is a cluster. With `sentinel` the
    hosts are sentinels, which name the primary. A write is complete when `replicas` replicas have it. Others are those of
    redis-py, `ssl_ca_certs` for instance. `password` is for a URL without one. A session lives as long as the longest life of
    its values.

    Raises:
        ConfigError: the URL has another form.
    """

    def __init__(self, url: str, *, timeout_s: float, password: str | None = None) -> None:
        address = RedisAddress.of(url, _PREFIX)
        self._prefix = address.prefix
        if not _PREFIX_FORM.fullmatch(self._prefix):
            raise ConfigError(
                f"handler.store.url: prefix {self._prefix!r} may have only A-Z a-z 0-9 - _ . : /"
            )
        kind = ClusterServers if address.is_cluster else OneServer
        self._servers: OneServer | ClusterServers = kind(
            address, timeout_s=timeout_s, password=password
        )
        self._has_warned = False
        # Of a cluster, other servers may answer.
        self._gate = Gate(*([] if address.is_cluster else [exceptions.TimeoutError]))

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """See `Store`."""
        name, field = self._place(key)
        ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1000))
        with self._reported():
            return bool(self._servers.write(name, "EVAL", _CREATE, 1, name, data, ttl_ms, field))

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        name, field = self._place(key)
        with self._reported():
            client = self._servers.client
            value: bytes | None = client.hget(name, field) if field else client.get(name)
        return value

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """See `Store`. One round trip reads up to 1,000 values."""
        places = [self._place(key) for key in keys]
        values: list[bytes | None] = []
        with self._reported():
            for start in range(0, len(places), _PAGE):
                page = self._servers.client.pipeline(transaction=False)
                for name, field in places[start : start + _PAGE]:
                    page.hget(name, field) if field else page.get(name)
                values += page.execute()
        return values

    def list(self, prefix: str) -> Sequence[str]:
        """See `Store`. A prefix of one segment searches the whole database."""
        with self._reported():
            if "/" in check_key(prefix):
                return sorted(self._fields(prefix))
            keys: list[str] = []
            for name in self._search(prefix):
                key = self._key(name)
                keys += self._fields(key[:-1]) if key.endswith("/") else [key]
            return sorted(keys)

    def delete(self, prefix: str) -> None:
        """See `Store`. A prefix of one segment searches the whole database."""
        name, field = self._place(prefix)
        with self._reported():
            if field:
                fields = [key.split("/", 2)[2] for key in self._fields(prefix)]
                self._servers.write(name, "HDEL", name, field, *fields)
            elif "/" in prefix:
                below = f"{name}/"
                first = min(self._servers.client.hkeys(below), default=b"")
                data = (first and self._servers.client.hget(below, first)) or b""
                self._servers.write(name, "EVAL", _DELETE, 2, name, below, first, data)
            else:
                for one in (name, *self._search(prefix)):
                    self._servers.write(one, "UNLINK", one)

    def delete_keys(self, keys: Sequence[str]) -> None:
        """See `Store`. One round trip removes all that are of one session."""
        fields: dict[str, list[str]] = {}
        for key in keys:
            name, field = self._place(key)
            fields.setdefault(name, []).append(field)
        with self._reported():
            for name, of_name in fields.items():
                command = ("HDEL", name, *of_name) if all(of_name) else ("UNLINK", name)
                self._servers.write(name, *command)

    def remove(self, key: str, data: bytes) -> None:
        """See `Store`."""
        name, field = self._place(key)
        with self._reported():
            self._servers.write(name, "EVAL", _REMOVE, 1, name, data, field)

    def sweep(self) -> None:
        """Do nothing: Redis removes values itself."""

    def capacity(self) -> Capacity:
        """Return `maxmemory`, and what is free of it; of a cluster's primaries, those of the fullest one.

        Warn, once, of a server that would forget sessions when it is full.
        """
        with self._reported():
            bounded = [one for one in self._servers.memory() if one.get("maxmemory")]
        is_safe = {one.get("maxmemory_policy", "noeviction") for one in bounded} <= {"noeviction"}
        if not (is_safe or self._has_warned):
            self._has_warned = True
            logger.warning("Redis forgets sessions when full: set maxmemory-policy noeviction")
        found = [
            Capacity(one["maxmemory"], max(0, one["maxmemory"] - one["used_memory"]))
            for one in bounded
        ]
        return min(found, key=lambda one: one.free_bytes / one.total_bytes, default=Capacity())

    def close(self) -> None:
        """Close the connections."""
        self._servers.close()

    def _place(self, key: str) -> tuple[str, str]:
        """Return the name of the string or hash, and the field in the hash or an empty string."""
        first, _, rest = check_key(key).partition("/")
        second, _, field = rest.partition("/")
        if not second:
            return f"{self._prefix}{key}", ""
        name = f"{self._prefix}{first}/{self._servers.tagged(second)}"
        return (f"{name}/", field) if field else (name, "")

    def _key(self, name: str) -> str:
        """Return the key of a string, or of a hash with a slash at its end. Neither a prefix nor a key has braces."""
        return name.removeprefix(self._prefix).translate(_NO_BRACES)

    def _fields(self, prefix: str) -> Sequence[str]:
        """List the keys below a prefix of two segments or more."""
        name, field = self._place(prefix)
        name = name if field else f"{name}/"
        folder = self._key(name)
        keys = [folder + field.decode() for field in self._servers.client.hkeys(name)]
        return [key for key in keys if key.startswith(f"{prefix}/")]

    def _search(self, prefix: str) -> set[str]:
        """Find the strings and hashes below a prefix of one segment. A set, as a search may return a name twice."""
        pattern = f"{self._prefix}{prefix}/*"
        found = self._servers.client.scan_iter(match=pattern, count=_PAGE)
        return {name.decode() for name in found}

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            with self._gate.passed():
                yield
        except (exceptions.RedisError, exceptions.RedisClusterException) as error:
            # In the order of the table: most of these are connection errors too.
            cures = (cure for kind, cure in _CURES.items() if isinstance(error, kind))
            cure = next(cures, "check the server's log")
            text = str(error).partition(" : <")[0]  # without the clients of the sentinels
            is_full = isinstance(error, exceptions.OutOfMemoryError)
            reason = f"Redis: {type(error).__name__}: {text}"
            raise StoreUnavailable(reason, cure, is_full=is_full) from error
