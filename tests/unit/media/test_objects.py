"""Images in S3, against a server of its protocol: which buckets, how much of them, and what its errors become."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tests.support.s3_server import s3_server
from tests.support.web import FIELD, MakeFetcher, refusal
from ts_stateful.config.schema import ConfigError
from ts_stateful.media.objects import ObjectReader
from ts_stateful.media.urls import Object
from ts_stateful.protocol.errors import MediaForbidden, MediaInvalid, MediaTooLarge

BUCKET = "photos.example"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a server that the environment names, with an object in a bucket."""
    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        client = boto3.session.Session().client("s3")
        client.create_bucket(Bucket=BUCKET)
        client.create_bucket(Bucket="others")
        for key in ("cat.png", "a/b c?versionId=%41#d.png"):
            client.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
        client.put_object(Bucket="others", Key="cat.png", Body=b"secret")
        yield client
        client.close()


@pytest.mark.parametrize("pattern", [BUCKET, "*.example"])
def test_an_object_of_an_allowed_bucket_is_read(
    client: Any, make_fetcher: MakeFetcher, pattern: str
) -> None:
    """Its key is all text after the bucket, unchanged."""
    fetcher = make_fetcher(allowed_buckets=("else", pattern))
    for key in ("cat.png", "a/b c?versionId=%41#d.png"):
        assert fetcher.fetch(f"s3://{BUCKET}/{key}", FIELD) == key.encode()
    assert fetcher.fetch(f"S3://{BUCKET}/cat.png", FIELD) == b"cat.png"


def test_other_buckets_are_forbidden(client: Any, make_fetcher: MakeFetcher) -> None:
    """Without any that is allowed, which is the default, all of them."""
    for allowed in ((), (BUCKET,), ("*.others", "other", "others.*")):
        fetcher = make_fetcher(allowed_buckets=allowed)
        assert "bucket" in refusal(fetcher, "s3://others/cat.png", MediaForbidden)


def test_what_cannot_be_a_bucket_is_refused_with_the_rule(make_fetcher: MakeFetcher) -> None:
    """Which is S3's."""
    assert "3 to 63 characters" in refusal(make_fetcher(), "s3://b/cat.png", MediaInvalid)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        f"s3://{BUCKET}",
        f"s3://{BUCKET}/",
        "s3:///cat.png",
        f"s3://key:secret@{BUCKET}/cat.png",
        f"s3://{BUCKET}:80/cat.png",
        "s3://Photos.example/cat.png",
        f"s3://{BUCKET}/../others/cat.png",
        f"s3://{BUCKET}/./cat.png",
        f"s3://{BUCKET}/a/..",
        f"s3://{BUCKET}/cat\n.png",
        f"s3://{BUCKET}/\ud800",
        f"s3://{BUCKET}/{'ä' * 513}",
        "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/x/cat.png",
    ],
)
def test_urls_that_name_no_object_are_refused(make_fetcher: MakeFetcher, url: str) -> None:
    """Nothing is asked for."""
    refusal(make_fetcher(), url, MediaInvalid)


def test_an_object_that_is_too_large_is_not_read(client: Any, make_fetcher: MakeFetcher) -> None:
    """Its length is known before; the limit itself is not too large."""
    settings: dict[str, Any] = {"allowed_buckets": (BUCKET,)}
    assert make_fetcher(max_bytes=7, **settings).fetch(f"s3://{BUCKET}/cat.png", FIELD)
    refusal(make_fetcher(max_bytes=6, **settings), f"s3://{BUCKET}/cat.png", MediaTooLarge)


def test_an_object_that_is_not_there_is_named(client: Any, make_fetcher: MakeFetcher) -> None:
    """A missing object and a missing bucket are invalid; the message does not repeat S3's."""
    fetcher = make_fetcher(allowed_buckets=(BUCKET, "nowhere"))
    for url in (f"s3://{BUCKET}/dog.png", "s3://nowhere/cat.png"):
        assert refusal(fetcher, url, MediaInvalid) == "there is no such object in S3; check the URL"


class Scripted:
    """A client that fails, or has a body longer than its declared length."""

    def __init__(self, error: Exception | None = None, body: Any = None, **length: int) -> None:
        self.error = error
        self.body = body
        self.length = length

    def get_object(self, **_: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"Body": self.body, **self.length}


def test_an_object_that_takes_too_long_is_given_up(client: Any, make_fetcher: MakeFetcher) -> None:
    """A slow object does not hold the caller for longer."""
    goes_on = threading.Event()

    class Slow:
        def read(self, source: Object, field: str) -> bytes:
            goes_on.wait()
            return b""

        def close(self) -> None:
            goes_on.set()

    fetcher = make_fetcher(allowed_buckets=(BUCKET,), timeout_sec=0.01)
    assert fetcher._objects is not None
    fetcher._objects.close()
    fetcher._objects = Slow()  # type: ignore[assignment]
    assert "within 0.01 s" in refusal(fetcher, f"s3://{BUCKET}/cat.png", MediaInvalid)


def reading(client: Scripted) -> ObjectReader:
    """A reader of at most 10 bytes with that client."""
    reader = ObjectReader(10, 5.0)
    reader.close()
    reader._client = client
    return reader


@pytest.mark.parametrize(
    ("code", "expected"), [("AccessDenied", MediaForbidden), ("SlowDown", MediaInvalid)]
)
def test_what_s3_refuses_is_raised(client: Any, code: str, expected: type[Exception]) -> None:
    """An object that the server may not read is forbidden to its clients."""
    error = client.exceptions.ClientError({"Error": {"Code": code}}, "GetObject")
    with pytest.raises(expected):
        reading(Scripted(error)).read(Object(BUCKET, "cat.png"), FIELD)


def test_a_missing_server_is_an_error(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """The message has nothing of the server's environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    reader = ObjectReader(10, 5.0)
    with pytest.raises(MediaInvalid, match=r"could not be read from S3$"):
        reader.read(Object(BUCKET, "cat.png"), FIELD)
    reader.close()


@pytest.mark.parametrize("length", [{"ContentLength": 1}, {}], ids=["announced", "in chunks"])
def test_more_than_was_announced_is_not_read(client: Any, length: dict[str, Any]) -> None:
    """Reading stops after the limit, also without a declared length."""

    class Body:
        asked = 0

        def __enter__(self) -> Body:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            self.asked = size
            return bytes(size)

    body = Body()
    with pytest.raises(MediaTooLarge):
        reading(Scripted(body=body, **length)).read(Object(BUCKET, "cat.png"), FIELD)
    assert body.asked == 11


def test_an_environment_that_cannot_be_meant_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    """It is said when the server starts."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "nonsense")
    with pytest.raises(ConfigError, match="allowedBuckets"):
        ObjectReader(10, 5.0)
