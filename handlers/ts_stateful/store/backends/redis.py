"""Values in Redis, or in a server that speaks its protocol.

All values below the same first two segments are the fields of one hash: `sessions/a/00000001` is the field `00000001` of the
hash `ts-stateful:sessions/a/`. So a session is listed, removed and expired as a whole, without a search. A key of one or two
segments, `blobs/<digest>`, is a string: `ts-stateful:blobs/<digest>`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ts_stateful.config.schema import ConfigError
from ts_stateful.store.base import StoreUnavailable, check_key

__all__ = ["RedisStore"]

_PREFIX = "ts-stateful:"
_PREFIX_FORM = re.compile(r"[A-Za-z0-9\-_.:/]*")  # no wildcards of a search
_PAGE = 1000
# Steps of a call, each with its own timeout: connecting and the reply; twice, as an idle connection may have died.
_STEPS = 4
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
_CURES: dict[type[exceptions.RedisError], str] = {
    exceptions.AuthenticationError: "check user and password (handler.store.url, handler.store.passwordEnv)",
    exceptions.NoPermissionError: "allow the user scripting, keyspace, string and hash commands",
    exceptions.OutOfMemoryError: "raise maxmemory of the server, or shorten the sessions' lifetime",
    exceptions.ReadOnlyError: "name the primary in handler.store.url, not a replica",
    exceptions.BusyLoadingError: "wait until the server has loaded its data",
    exceptions.ConnectionError: "check that the server of handler.store.url runs and can be reached",
    exceptions.TimeoutError: "check the server's load and the network, or raise handler.store.timeoutSec",
}


class RedisStore:
    """A database of a Redis server; `prefix=` in the URL begins the names of all keys (`ts-stateful:`).

    Other parameters of the URL are those of redis-py, `ssl_ca_certs=` for instance. `password` is for a URL without one. A
    session lives as long as the longest life of its values.

    Raises:
        ConfigError: the URL has another form.
    """

    def __init__(self, url: str, *, timeout_s: float, password: str | None = None) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._prefix = options.pop("prefix", _PREFIX)
        if not _PREFIX_FORM.fullmatch(self._prefix):
            raise ConfigError(
                f"handler.store.url: prefix {self._prefix!r} may have only A-Z a-z 0-9 - _ . : /"
            )
        try:
            self._client: Any = redis.Redis.from_url(
                parts._replace(query=urlencode(options)).geturl(),
                password=password,
                socket_connect_timeout=timeout_s / _STEPS,
                socket_timeout=timeout_s / _STEPS,
                retry=Retry(NoBackoff(), 1),
            )
            self._client.connection_pool.make_connection()  # connects to nothing
        except (ValueError, TypeError) as error:
            # The text of redis-py's error may contain the password.
            raise ConfigError(
                "handler.store.url: not a URL of Redis; write it like redis://user:password@host:6379/0?prefix=ts-stateful:"
            ) from error
        self._create = self._client.register_script(_CREATE)

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """See `Store`."""
        name, field = self._place(key)
        ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1000))
        with _reported():
            return bool(self._create(keys=[name], args=[data, ttl_ms, field]))

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        name, field = self._place(key)
        with _reported():
            value: bytes | None = (
                self._client.hget(name, field) if field else self._client.get(name)
            )
        return value

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """See `Store`. One round trip reads up to 1,000 values."""
        places = [self._place(key) for key in keys]
        values: list[bytes | None] = []
        with _reported():
            for start in range(0, len(places), _PAGE):
                page = self._client.pipeline(transaction=False)
                for name, field in places[start : start + _PAGE]:
                    page.hget(name, field) if field else page.get(name)
                values += page.execute()
        return values

    def list(self, prefix: str) -> Sequence[str]:
        """See `Store`. A prefix of one segment searches the whole database."""
        with _reported():
            if "/" in check_key(prefix):
                return sorted(self._fields(prefix))
            keys: list[str] = []
            for name in self._search(prefix):
                key = name.removeprefix(self._prefix)
                keys += self._fields(key[:-1]) if key.endswith("/") else [key]
            return sorted(keys)

    def delete(self, prefix: str) -> None:
        """See `Store`. A prefix of one segment searches the whole database."""
        name, field = self._place(prefix)
        with _reported():
            if field:
                fields = [key.split("/", 2)[2] for key in self._fields(prefix)]
                self._client.hdel(name, field, *fields)
            else:
                below = [] if "/" in prefix else self._search(prefix)
                names = [name, f"{name}/", *below]
                for start in range(0, len(names), _PAGE):
                    self._client.unlink(*names[start : start + _PAGE])

    def sweep(self) -> None:
        """Does nothing: Redis removes values itself."""

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _place(self, key: str) -> tuple[str, str]:
        """Return the name of the string or hash, and the field in the hash or an empty string."""
        first, _, rest = check_key(key).partition("/")
        second, _, field = rest.partition("/")
        if not field:
            return f"{self._prefix}{key}", ""
        return f"{self._prefix}{first}/{second}/", field

    def _fields(self, prefix: str) -> Sequence[str]:
        """List the keys below a prefix of two segments or more."""
        name, field = self._place(prefix)
        name = name if field else f"{name}/"
        folder = name.removeprefix(self._prefix)
        keys = [folder + field.decode() for field in self._client.hkeys(name)]
        return [key for key in keys if key.startswith(f"{prefix}/")]

    def _search(self, prefix: str) -> set[str]:
        """Find the strings and hashes below a prefix of one segment. A set, as a search may return a name twice."""
        pattern = f"{self._prefix}{prefix}/*"
        return {name.decode() for name in self._client.scan_iter(match=pattern, count=_PAGE)}


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except exceptions.RedisError as error:
        # In the order of the table: most of these are connection errors too.
        cures = (cure for kind, cure in _CURES.items() if isinstance(error, kind))
        cure = next(cures, "check the server's log")
        raise StoreUnavailable(f"Redis: {type(error).__name__}: {error}", cure) from error
