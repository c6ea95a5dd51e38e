"""Values as objects in S3, or in what speaks its protocol and honours `If-None-Match`.

Owns the requests. Knows nothing of what the values mean. Credentials are what boto3 finds: environment, files, roles.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ts_stateful.config.schema import ConfigError
from ts_stateful.store.base import StoreUnavailable, check_key

__all__ = ["S3Store"]

_PAGE = 1000  # keys in one request, at most
_READERS = 16  # requests of one or more `get_many` at the same time
_CONNECTIONS = 32  # at most: those of the readers, and of the threads that call
_PAUSE_S = 0.05
# Steps of a call that may each use up their time: connecting, a reply; each twice.
_STEPS = 4
_TAKEN = {"PreconditionFailed", "412"}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
_ABSENT = {"NoSuchKey", "404"}
_CURES = {
    "NoSuchBucket": "make the bucket that handler.store.url names",
    "AccessDenied": "allow s3:GetObject, s3:PutObject, s3:DeleteObject and, for absent keys, s3:ListBucket",
    "InvalidAccessKeyId": "look at the credentials in the environment",
    "SignatureDoesNotMatch": "look at the credentials in the environment",
    "ExpiredToken": "renew the credentials in the environment",
    "NotImplemented": "the server must know If-None-Match for PutObject",
    "SlowDown": "wait",
}


class S3Store:
    """A prefix in a bucket: `s3://bucket/prefix?endpoint_url=...&region=...`. The other arguments are for tests.

    `ttl_s` means nothing here: a lifecycle rule of the bucket removes old objects.

    Raises:
        ConfigError: the URL has another form.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        client: Any | None = None,
        pause: Callable[[float], None] = time.sleep,
        page_size: int = _PAGE,
    ) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if not parts.netloc or "@" in parts.netloc or options.keys() - {"endpoint_url", "region"}:
            raise ConfigError(
                "handler.store.url: must be like s3://bucket/prefix?region=eu-central-1, or with endpoint_url=...; "
                "credentials come from the environment"
            )
        self._bucket = parts.netloc
        folder = parts.path.strip("/")
        self._root = f"{folder}/" if folder else ""
        self._timeout_s = timeout_s
        self._pause = pause
        self._page_size = page_size
        self._client = client or _client(timeout_s, **options)
        self._readers = ThreadPoolExecutor(_READERS, "s3-reader")
        self._is_exclusive = False  # whether that was tried
        self._trial = threading.Lock()

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """Writes a value if there is none under that key."""
        name = self._name(key)
        with _reported():
            self._try_exclusive()
            return self._put(name, data)

    def get(self, key: str) -> bytes | None:
        """The value, or None if there is none."""
        with _reported():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._name(key))
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise
            data: bytes = answer["Body"].read()
            return data

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """The values in the order of their keys, several requests at a time; None where there is none."""
        return list(self._readers.map(self.get, keys))

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below `prefix`, in order."""
        with _reported():
            return sorted(name[len(self._root) :] for name in self._below(self._name(prefix)))

    def delete(self, prefix: str) -> None:
        """Removes the value at `prefix` and all below it, of a session the last entries first."""
        name = self._name(prefix)
        with _reported():
            names = [*sorted(self._below(name), reverse=True), name]
            for start in range(0, len(names), self._page_size):
                objects = [{"Key": one} for one in names[start : start + self._page_size]]
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
                )
                for failure in answer.get("Errors", ()):
                    raise _unavailable(failure.get("Code", ""))

    def sweep(self) -> None:
        """Does nothing: that is for a lifecycle rule."""

    def close(self) -> None:
        """Closes the connections."""
        self._readers.shutdown(cancel_futures=True)
        self._client.close()

    def _name(self, key: str) -> str:
        return f"{self._root}{check_key(key)}"

    def _put(self, name: str, data: bytes) -> bool:
        """Whether the object is new. While another one is writing it, S3 tells neither of the two to go on or to stop."""
        end_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._client.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in _TAKEN:
                    return False
                if _code(error) not in _CONFLICT or time.monotonic() > end_s:
                    raise
                self._pause(_PAUSE_S)
            else:
                return True

    def _below(self, name: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        options = {"PageSize": self._page_size}
        for page in pages.paginate(
            Bucket=self._bucket, Prefix=f"{name}/", PaginationConfig=options
        ):
            yield from (entry["Key"] for entry in page.get("Contents", ()))

    def _try_exclusive(self) -> None:
        """There are servers that take `If-None-Match` for nothing, and let two engines go on with one session."""
        with self._trial:
            if self._is_exclusive:
                return
            name = f"{self._root}~trial/{secrets.token_hex(16)}"
            self._put(name, b"")
            self._is_exclusive = not self._put(name, b"")
            self._client.delete_object(Bucket=self._bucket, Key=name)
            if not self._is_exclusive:
                raise StoreUnavailable(
                    "S3: the server ignores If-None-Match", _CURES["NotImplemented"]
                )


def _client(timeout_s: float, endpoint_url: str | None = None, region: str | None = None) -> Any:
    config = Config(
        max_pool_connections=_CONNECTIONS,
        connect_timeout=timeout_s / _STEPS,
        read_timeout=timeout_s / _STEPS,
        retries={"mode": "standard", "total_max_attempts": 2},
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        # Values have checksums of their own, and not every server knows these.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # A session of its own: the one that boto3 shares must not make clients in two threads.
    session = boto3.session.Session()
    try:
        return session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"handler.store.url: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _unavailable(code: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"S3: {code}", _CURES.get(code, "look at the bucket and at the server's log")
    )


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _unavailable(_code(error)) from error
    except BotoCoreError as error:
        # Its text has the object's name, which has a session's id.
        raise StoreUnavailable(
            f"S3: {type(error).__name__}",
            "look whether the server of handler.store.url can be reached, and at the credentials in the environment",
        ) from error
