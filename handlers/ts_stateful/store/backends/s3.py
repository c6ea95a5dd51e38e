"""Values as objects in S3, or in a server that speaks its protocol and honours `If-None-Match`.

boto3 finds the credentials: in the environment, in files, in roles.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, ReadTimeoutError

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.base import Capacity, StoreUnavailable, check_key
from ts_stateful.store.gate import Gate

__all__ = ["S3Store"]

_PAGE = 1000  # keys in one request, at most
_READERS = 16  # concurrent requests of all `get_many` calls
_CONNECTIONS = 32  # at most: those of the readers, and of the calling threads
_PAUSE_S = 0.05
# Steps of a call, each with its own timeout: connecting and the reply, each twice.
_STEPS = 4
_TAKEN = {"PreconditionFailed", "412"}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
_ABSENT = {"NoSuchKey", "404"}
# Of servers that know no conditional removals.
_LACKING = {"NotImplemented", "MalformedXML", "InvalidArgument", "InvalidRequest"}
_CURES = {
    "NoSuchBucket": "create the bucket that handler.store.url names",
    "AccessDenied": "allow s3:GetObject, s3:PutObject, s3:DeleteObject and, for absent keys, s3:ListBucket",
    "InvalidAccessKeyId": "check the credentials in the environment",
    "SignatureDoesNotMatch": "check the credentials in the environment",
    "ExpiredToken": "renew the credentials in the environment",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "InvalidObjectState": "let no lifecycle rule move objects to a class that must be restored before it is read",
    "NotImplemented": "use a server that supports If-None-Match for PutObject",
    "SlowDown": "wait, or raise the request limits of the bucket",
}


class S3Store:
    """A prefix in a bucket: `s3://bucket/prefix?endpoint_url=...&region=...`. `client` and later arguments are for tests.

    `ttl_s` has no effect: a lifecycle rule of the bucket removes old objects.

    Raises:
        ConfigError: the URL has another form.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        client: Any | None = None,
        clock: Clock = SYSTEM_CLOCK,
        page_size: int = _PAGE,
    ) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if not parts.netloc or "@" in parts.netloc or options.keys() - {"endpoint_url", "region"}:
            raise ConfigError(
                "handler.store.url: not a URL of S3; write it like s3://bucket/prefix?region=eu-central-1, or with "
                "endpoint_url=...; credentials come from the environment"
            )
        self._bucket = parts.netloc
        folder = parts.path.strip("/")
        self._root = f"{folder}/" if folder else ""
        self._timeout_s = timeout_s
        self._clock = clock
        self._page_size = page_size
        self._client = client or _client(timeout_s, **options)
        self._readers = ThreadPoolExecutor(_READERS, "s3-reader")
        self._is_exclusive = False  # verified: the server honours If-None-Match
        self._trial_lock = threading.Lock()
        self._gate = Gate(ConnectTimeoutError, ReadTimeoutError, clock=clock)

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """See `Store`."""
        name = self._name(key)
        with self._reported():
            self._try_exclusive()
            return self._put(name, data)

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        with self._reported():
            return self._read(key)

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """See `Store`. Requests run in parallel."""
        with self._reported():
            return list(self._readers.map(self._read, keys))

    def list(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        with self._reported():
            found = self._below(self._name(prefix))
            return sorted(one["Key"][len(self._root) :] for one in found)

    def delete(self, prefix: str) -> None:
        """See `Store`. The last entries of a session go first."""
        name = self._name(prefix)
        with self._reported():
            # With their tags: a removal that is carried out late spares a later session of the same id.
            found = sorted((one["Key"], one["ETag"]) for one in self._below(name))
            objects = [{"Key": key, "ETag": tag} for key, tag in reversed(found)]
            self._delete_all([*objects, {"Key": name}])

    def delete_keys(self, keys: Sequence[str]) -> None:
        """See `Store`. One request removes up to 1,000 values."""
        with self._reported():
            self._delete_all([{"Key": self._name(key)} for key in keys])

    def remove(self, key: str, data: bytes) -> None:
        """See `Store`. A server that lacks `If-Match` here removes what is there."""
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        with self._reported():
            try:
                answer = self._client.get_object(**place)
                if answer["Body"].read() == data:
                    self._client.delete_object(**place, IfMatch=answer["ETag"])
            except ClientError as error:
                if _code(error) in _LACKING:
                    self._client.delete_object(**place)
                elif _code(error) not in _ABSENT | _TAKEN:
                    raise

    def sweep(self) -> None:
        """Do nothing: a lifecycle rule removes old objects."""

    def capacity(self) -> Capacity:
        """See `Store`. A bucket has no bound."""
        return Capacity()

    def close(self) -> None:
        """See `Store`."""
        self._readers.shutdown(cancel_futures=True)
        self._client.close()

    def _name(self, key: str) -> str:
        return f"{self._root}{check_key(key)}"

    def _read(self, key: str) -> bytes | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._name(key))
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise
        return bytes(answer["Body"].read())

    def _put(self, name: str, data: bytes) -> bool:
        """Write an object. Return False if it exists. Retry conflicts, which S3 reports while another request writes it."""
        end_s = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                self._client.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in _TAKEN:
                    return False
                if _code(error) not in _CONFLICT or self._clock.monotonic() > end_s:
                    raise
                self._clock.sleep(_PAUSE_S)
            else:
                return True

    def _delete_all(self, objects: Sequence[dict[str, str]]) -> None:
        for start in range(0, len(objects), self._page_size):
            page = objects[start : start + self._page_size]
            codes = self._delete(page)
            if codes & _LACKING:  # then what is there is removed
                codes = self._delete([{"Key": one["Key"]} for one in page])
            if codes - _TAKEN:
                raise _unavailable((codes - _TAKEN).pop())

    def _delete(self, objects: Sequence[dict[str, str]]) -> set[str]:
        """Remove objects, and return the codes of what failed."""
        page = {"Objects": objects, "Quiet": True}
        try:
            answer = self._client.delete_objects(Bucket=self._bucket, Delete=page)
        except ClientError as error:
            return {_code(error)}
        return {failure.get("Code", "") for failure in answer.get("Errors", ())}

    def _below(self, name: str) -> Iterator[Any]:
        pages = self._client.get_paginator("list_objects_v2")
        options = {"PageSize": self._page_size}
        for page in pages.paginate(
            Bucket=self._bucket, Prefix=f"{name}/", PaginationConfig=options
        ):
            yield from page.get("Contents", ())

    def _try_exclusive(self) -> None:
        """Verify once that the server honours `If-None-Match`; else two engines could continue one session."""
        with self._trial_lock:
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

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            with self._gate.passed():
                yield
        except ClientError as error:
            raise _unavailable(_code(error)) from error
        except BotoCoreError as error:
            # Its text contains the object's name, and so a session id.
            raise StoreUnavailable(
                f"S3: {type(error).__name__}",
                "check that the server of handler.store.url can be reached, and the credentials in the environment",
            ) from error


def _client(timeout_s: float, endpoint_url: str | None = None, region: str | None = None) -> Any:
    config = Config(
        max_pool_connections=_CONNECTIONS,
        connect_timeout=timeout_s / _STEPS,
        read_timeout=timeout_s / _STEPS,
        retries={"mode": "standard", "total_max_attempts": 2},
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        # Values have their own checksums, and not every server supports these.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # Not boto3's shared session, which must not make clients in two threads.
    session = boto3.session.Session()
    try:
        return session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"handler.store.url: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _unavailable(code: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"S3: {code}", _CURES.get(code, "check the bucket and the server's log")
    )
