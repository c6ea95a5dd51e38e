"""Images that are objects in S3, read with the server's own credentials.

`Fetcher` checks the buckets before: every client of this server can see the objects that are read here.
"""

from __future__ import annotations

from typing import Any

from ts_stateful.config.schema import ConfigError
from ts_stateful.media.encoded import check_size
from ts_stateful.media.urls import Object
from ts_stateful.protocol.errors import MediaForbidden, MediaInvalid

__all__ = ["ObjectReader"]

_ABSENT = {"NoSuchKey", "NoSuchBucket", "404"}
_DENIED = {"AccessDenied", "AllAccessDisabled", "InvalidObjectState", "403"}


class ObjectReader:
    """A reader of objects by boto3, with the environment's credentials, region and endpoint; thread-safe.

    Connecting, and every wait for more of an object, take at most `timeout_s` seconds.

    Raises:
        ConfigError: boto3 is not installed, or it refuses its settings in the environment.
    """

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        try:
            # An extra of the package, imported only if buckets are allowed.
            from boto3.session import Session  # noqa: PLC0415
            from botocore import exceptions as aws  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"handler.media.allowedBuckets: {error.name} is not installed; "
                "pip install 'torchserve-stateful[s3]'"
            ) from error
        self._aws: Any = aws
        config = Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1},
            response_checksum_validation="when_required",  # the image's decoder checks the bytes
        )
        try:
            # A session of its own: boto3's shared one must not make clients in two threads.
            self._client = Session().client("s3", config=config)
        except (aws.BotoCoreError, ValueError) as error:
            raise ConfigError(f"handler.media.allowedBuckets: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def read(self, source: Object, field: str) -> bytes:
        """Read an object of at most `max_bytes` bytes.

        Raises:
            MediaTooLarge: it has more; nothing was read if S3 declares the size.
            MediaForbidden: S3 denies the server access.
            MediaInvalid: there is no such object, or S3 does not answer.
        """
        try:
            answer = self._client.get_object(Bucket=source.bucket, Key=source.key)
            with answer["Body"] as body:
                check_size(answer.get("ContentLength", 0), self._max_bytes, field)
                data: bytes = body.read(self._max_bytes + 1)
        except self._aws.ClientError as error:
            raise _refused(str(error.response.get("Error", {}).get("Code", "")), field) from None
        except (self._aws.BotoCoreError, OSError):
            # Its text may name the server's endpoint and credentials.
            raise MediaInvalid("the image could not be read from S3", field=field) from None
        check_size(len(data), self._max_bytes, field)
        return data


def _refused(code: str, field: str) -> MediaForbidden | MediaInvalid:
    if code in _DENIED:
        return MediaForbidden(
            "S3 denies the server access to this object; allow its credentials s3:GetObject",
            field=field,
        )
    if code in _ABSENT:
        return MediaInvalid("there is no such object in S3; check the URL", field=field)
    return MediaInvalid(f"the image could not be read from S3: {code}"[:200], field=field)
