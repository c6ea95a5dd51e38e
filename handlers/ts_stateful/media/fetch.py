"""Images at URLs, fetched without trust in the URL, the name server or the web server.

HTTP and TLS are httpcore's, on the connections of `connect`. No proxy and no credentials are taken from the environment, and
no cookie is kept.
"""

from __future__ import annotations

import concurrent.futures
import functools
import ssl
from collections.abc import Sequence

import httpcore

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.addresses import is_local_name, is_public_address
from ts_stateful.media.connect import PinnedBackend, Resolver, TimeLimit
from ts_stateful.media.encoded import check_size, decode_data_url
from ts_stateful.media.objects import ObjectReader
from ts_stateful.media.urls import Target, parse_object_url, parse_url, resolve_redirect, scheme_of
from ts_stateful.protocol.errors import MediaForbidden, MediaInvalid

__all__ = ["Fetcher"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SYSTEM_RESOLVER = Resolver()


class Fetcher:
    """Fetches of images by URL, within the limits of a `MediaConfig`; thread-safe.

    Owns the threads that wait for name servers until `close`. `backend` makes the sockets and gets only checked addresses.
    `ssl_context` has by default the system's and certifi's roots.
    """

    def __init__(
        self,
        config: MediaConfig,
        *,
        resolver: Resolver = _SYSTEM_RESOLVER,
        clock: Clock = SYSTEM_CLOCK,
        backend: httpcore.NetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._resolver = resolver
        self._clock = clock
        self._backend = backend or httpcore.SyncBackend()
        self._given_ssl_context = ssl_context
        self._web_schemes = tuple(name for name in config.allowed_schemes if name != "data")
        self._objects = (
            ObjectReader(config.max_bytes, config.timeout_sec) if config.allowed_buckets else None
        )
        # A query cannot be interrupted, only abandoned; the pool bounds the number of those.
        self._queries = concurrent.futures.ThreadPoolExecutor(
            max_workers=config.fetches, thread_name_prefix="media-resolve"
        )

    def close(self) -> None:
        """End the threads; a fetch after this raises a RuntimeError."""
        self._queries.shutdown(wait=False, cancel_futures=True)
        if self._objects is not None:
            self._objects.close()

    def fetch(self, url: str, field: str) -> bytes:
        """Fetch the bytes at `url`, at most `max_bytes`, within `timeout_sec` seconds for all redirects.

        Raises:
            MediaForbidden: the scheme, the bucket, the host or one of its addresses is not allowed, here or after a redirect.
                No connection was made there.
            MediaTooLarge: the body is larger than `max_bytes`.
            MediaInvalid: the URL is malformed, or the server does not answer with a body of status
                200 in time.
        """
        config = self._config
        if url[:5].lower() == "s3://":
            return self._fetch_object(url, field)
        if scheme_of(url, config.allowed_schemes, field) == "data":
            return decode_data_url(url, config.max_bytes, field)
        target = parse_url(url, self._web_schemes, field)
        deadline = TimeLimit(self._clock, config.timeout_sec)
        try:
            return self._follow(target, deadline, field)
        except httpcore.TimeoutException:
            message = f"the image could not be fetched within {config.timeout_sec:g} s"
            raise MediaInvalid(message, field=field) from None
        except (httpcore.NetworkError, httpcore.ProtocolError):
            raise MediaInvalid(
                "the image could not be fetched from its server; check the URL", field=field
            ) from None

    def _fetch_object(self, url: str, field: str) -> bytes:
        target, allowed = parse_object_url(url, field), self._config.allowed_buckets
        if self._objects is None or not any(_matches(p, target.bucket) for p in allowed):
            raise MediaForbidden(
                "the URL's bucket is not one of handler.media.allowedBuckets", field=field
            )
        # The library's timeouts are for one wait each.
        reading = self._queries.submit(self._objects.read, target, field)
        try:
            return reading.result(self._config.timeout_sec)
        except concurrent.futures.TimeoutError:
            reading.cancel()
            message = f"the image could not be read within {self._config.timeout_sec:g} s"
            raise MediaInvalid(message, field=field) from None

    def _follow(self, target: Target, deadline: TimeLimit, field: str) -> bytes:
        for _ in range(self._config.max_redirects + 1):
            answer = self._get(target, deadline, field)
            if isinstance(answer, bytes):
                return answer
            target = answer
        limit = self._config.max_redirects
        raise MediaInvalid(f"the image's server redirects more than {limit} times", field=field)

    def _get(self, target: Target, deadline: TimeLimit, field: str) -> bytes | Target:
        """Return the body at `target`, or the target of its redirect."""
        addresses = self._allowed_addresses(target, deadline, field)
        url = httpcore.URL(
            scheme=target.scheme.encode(),
            host=target.host.encode(),
            port=target.port,
            target=target.path.encode(),
        )
        headers: dict[bytes | str, bytes | str] = {
            "Host": target.authority,
            "User-Agent": "ts-stateful",
            "Accept": "image/*, audio/*",
            "Accept-Encoding": "identity",  # bytes on the wire are bytes of the image
            "Connection": "close",
        }
        backend = PinnedBackend(self._backend, addresses, deadline)
        ssl_context = self._ssl_context if target.scheme == "https" else None
        with (
            httpcore.ConnectionPool(ssl_context, network_backend=backend) as pool,
            pool.stream("GET", url, headers=headers) as response,
        ):
            location = _header(response, b"location")
            if response.status in _REDIRECTS and location is not None:
                return resolve_redirect(target, location, self._web_schemes, field)
            return _read_body(response, self._config.max_bytes, field)

    def _allowed_addresses(self, target: Target, deadline: TimeLimit, field: str) -> Sequence[str]:
        config = self._config
        if target.port not in config.ports:
            raise MediaForbidden(
                "the URL's port is not one of handler.media.allowedPorts", field=field
            )
        if config.allowed_hosts and not any(_matches(p, target.host) for p in config.allowed_hosts):
            raise MediaForbidden(
                "the URL's host is not one of handler.media.allowedHosts", field=field
            )
        if not config.allow_private_addresses and is_local_name(target.host):
            raise MediaForbidden("the URL's host is a name of a private network", field=field)
        addresses = self._resolve(target, deadline, field)
        # One bad address among good ones refuses all: a name mixes them only on purpose.
        if not config.allow_private_addresses and not all(map(is_public_address, addresses)):
            raise MediaForbidden("the URL's host has an address that is not public", field=field)
        return addresses

    def _resolve(self, target: Target, deadline: TimeLimit, field: str) -> Sequence[str]:
        if target.is_address:
            return [target.host]
        query = self._queries.submit(self._resolver.resolve, target.host, target.port)
        try:
            addresses = query.result(deadline.remaining_s())
        except concurrent.futures.TimeoutError:
            query.cancel()
            raise httpcore.ConnectTimeout from None
        except OSError:
            addresses = []
        if not addresses:
            raise MediaInvalid("the URL's host cannot be resolved", field=field)
        return addresses

    @functools.cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        # Made at first use, as it reads all root certificates. If two threads make one, either will do.
        return self._given_ssl_context or httpcore.default_ssl_context()


def _read_body(response: httpcore.Response, max_bytes: int, field: str) -> bytes:
    """Read the body and count it; the length that the server declares can only refuse it earlier."""
    if response.status != 200:
        message = f"the image's server answered with status {response.status}"
        raise MediaInvalid(message, field=field)
    if (_header(response, b"content-encoding") or b"identity").lower() != b"identity":
        raise MediaInvalid("the image's server compressed the answer unasked", field=field)
    declared = _header(response, b"content-length") or b"0"
    check_size(int(declared) if len(declared) < 20 else max_bytes + 1, max_bytes, field)
    body = bytearray()
    for chunk in response.iter_stream():
        body += chunk
        check_size(len(body), max_bytes, field)
    return bytes(body)


def _header(response: httpcore.Response, name: bytes) -> bytes | None:
    return next((value for key, value in response.headers if key.lower() == name), None)


def _matches(pattern: str, host: str) -> bool:
    """Return True if `pattern`, an exact host or `*.` and a domain, covers `host`."""
    pattern = pattern.lower().strip("[]")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern
