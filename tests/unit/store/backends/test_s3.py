"""Values in S3, against a server of its protocol."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session

from tests.support.clock import FakeClock
from tests.support.s3_server import s3_server
from tests.support.store_behaviour import StoreBehaviour
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.backends.s3 import S3Store
from ts_stateful.store.base import Store, StoreUnavailable

_TIMEOUT_S = 20.0  # for a call, on a machine that is busy


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Start a server for all tests of this file."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    """Set credentials for the bucket, and hide all others of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="module")
def client(endpoint: str, credentials: None) -> Iterator[Any]:
    """Return a client of the server, and create a bucket `bucket`. Takes most of a second."""
    client = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    yield client
    client.close()


@pytest.fixture
def url(endpoint: str, client: Any) -> str:
    """Return the URL of an unused prefix in the bucket."""
    return f"s3://bucket/{secrets.token_hex(8)}/x?endpoint_url={endpoint}&region=us-east-1"


class Body:
    """The body of an answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Iterator[bytes]:
        """Yield all of it at once."""
        yield self._body


@contextlib.contextmanager
def meddling(client: Any, event: str, handler: Callable[..., Any]) -> Iterator[None]:
    """Handle an event between the client and the server."""
    client.meta.events.register(event, handler)
    try:
        yield
    finally:
        client.meta.events.unregister(event, handler)


class TestS3Store(StoreBehaviour):
    """The contract of every store."""

    @pytest.fixture
    def store(self, url: str, client: Any) -> Store:
        """Return an empty store."""
        return S3Store(url, timeout_s=_TIMEOUT_S, client=client)


def test_a_removal_names_what_it_removes(url: str, client: Any) -> None:
    """The tags of a session's values: a server that heeds them and is late spares a later session of the same id."""
    store, asked = S3Store(url, timeout_s=_TIMEOUT_S, client=client), list[Any]()
    for position in range(3):
        store.create(f"sessions/a/{position:08d}", b"%d" % position)
    tags = {hashlib.md5(b"%d" % position).hexdigest() for position in range(3)}

    def note(params: dict[str, Any], **_: Any) -> None:
        asked.extend(params["Delete"]["Objects"])

    with meddling(client, "before-parameter-build.s3.DeleteObjects", note):
        store.delete("sessions/a")
    assert {one["ETag"].strip('"') for one in asked if one["Key"][-9] == "/"} == tags
    assert not store.list("sessions/a")


def test_a_url_is_enough(url: str, client: Any) -> None:
    """Another store at the same URL has the same values; one at another prefix does not."""
    store = S3Store(url, timeout_s=_TIMEOUT_S)
    assert store.create("a/b", b"x")
    assert S3Store(url, timeout_s=_TIMEOUT_S, client=client).get("a/b") == b"x"
    other = url.replace("/x?", "/y?")
    assert S3Store(other, timeout_s=_TIMEOUT_S, client=client).get("a/b") is None
    store.close()


def test_many_keys_are_listed_and_removed(url: str, client: Any) -> None:
    """More than one page of each request."""
    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client, page_size=10)
    keys = sorted(f"blobs/{n}" for n in range(25))
    for key in keys:
        store.create(key, b"")
    assert store.list("blobs") == keys
    asked: list[Any] = []
    with meddling(client, "before-call.s3", lambda model, **_: asked.append(model.name)):
        store.delete_keys(keys[1:])
    assert asked == ["DeleteObjects"] * 3
    store.delete("blobs")
    assert not store.list("blobs")


def test_a_conflict_is_tried_again(url: str, client: Any) -> None:
    """S3 answers 409 while another request writes the same object."""
    clock = FakeClock(0.0)

    def conflict(**_: Any) -> AWSResponse | None:
        body = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
        return AWSResponse("", 409, {}, Body(body)) if clock.now < 0.1 else None

    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client, clock=clock)
    with meddling(client, "before-send.s3.PutObject", conflict):
        assert store.create("a", b"x")
    assert clock.now == 0.1  # two pauses
    assert store.get("a") == b"x"


def test_many_values_are_one_call_after_a_silence(url: str, client: Any) -> None:
    """While it reads the first one, the others are not refused."""
    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client)
    keys = [f"k/{number}" for number in range(16)]
    for key in keys:
        store.create(key, key.encode())

    def lost(**_: Any) -> AWSResponse | None:
        raise ReadTimeoutError(endpoint_url=url)

    with meddling(client, "before-send.s3.GetObject", lost), pytest.raises(StoreUnavailable):
        store.get(keys[0])
    assert store.get_many(keys) == [key.encode() for key in keys]


def test_a_late_removal_spares_what_was_written_since(url: str, client: Any) -> None:
    """The client sends a request again that seems lost, and the server receives both."""
    late: list[Any] = []

    def lose(request: Any, **_: Any) -> None:
        if not late:
            late.append(request)
            raise ReadTimeoutError(endpoint_url=request.url)

    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client)
    store.create("a", b"old")
    with meddling(client, "before-send.s3.DeleteObject", lose):
        store.remove("a", b"old")
    assert store.create("a", b"new")
    assert URLLib3Session().send(late[0]).status_code == 412
    assert store.get("a") == b"new"


@pytest.mark.parametrize(
    ("status", "form"),
    [
        (501, "<Error><Code>NotImplemented</Code></Error>"),
        (400, "<Error><Code>MalformedXML</Code></Error>"),
        (200, "<DeleteResult><Error><Code>NotImplemented</Code></Error></DeleteResult>"),
    ],
)
def test_a_server_may_lack_conditional_removals(
    url: str, client: Any, status: int, form: str
) -> None:
    """What is there is removed, whether the server refuses the request or its objects."""

    def refuse(request: Any, **_: Any) -> AWSResponse | None:
        is_conditional = "If-Match" in request.headers or b"ETag" in (request.body or b"")
        return AWSResponse("", status, {}, Body(form.encode())) if is_conditional else None

    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client)
    store.create("a/b", b"x")
    with meddling(client, "before-send.s3.DeleteObjects", refuse):
        store.delete("a")
    assert store.get("a/b") is None
    store.create("a", b"x")
    if status != 200:
        with meddling(client, "before-send.s3.DeleteObject", refuse):
            store.remove("a", b"x")
        assert store.get("a") is None


@pytest.mark.parametrize(
    ("reason", "cure"),
    [("RequestTimeTooSkewed", "set the clock"), ("InvalidObjectState", "let no lifecycle rule")],
)
def test_a_refusal_names_its_remedy(url: str, client: Any, reason: str, cure: str) -> None:
    """A clock that is wrong, and objects in an archive."""

    def refuse(**_: Any) -> AWSResponse:
        return AWSResponse("", 403, {}, Body(f"<Error><Code>{reason}</Code></Error>".encode()))

    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client)
    with (
        meddling(client, "before-send.s3.GetObject", refuse),
        pytest.raises(StoreUnavailable, match=f"{reason}: {cure}"),
    ):
        store.get("a")


def test_a_server_without_conditional_writes_is_refused(url: str, client: Any) -> None:
    """Two engines could continue one session there."""

    def ignore(request: Any, **_: Any) -> None:
        del request.headers["If-None-Match"]

    store = S3Store(url, timeout_s=_TIMEOUT_S, client=client)
    with meddling(client, "before-sign.s3.PutObject", ignore):
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="supports If-None-Match"):
                store.create("a", b"x")
    assert store.get("a") is None


def test_a_missing_bucket_is_reported(client: Any) -> None:
    """With the remedy. A missing object is not an error."""
    store = S3Store("s3://none", timeout_s=_TIMEOUT_S, client=client)
    for call in (
        lambda: store.create("sessions/secret-id", b""),
        lambda: store.get("sessions/secret-id"),
        lambda: store.list("sessions/secret-id"),
        lambda: store.delete("sessions/secret-id"),
    ):
        with pytest.raises(StoreUnavailable, match="create the bucket") as caught:
            call()
        assert "secret-id" not in str(caught.value)
    store.close()


def test_a_server_that_is_down_is_reported() -> None:
    """So is a server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for port, timeout_s in ((silent.getsockname()[1], 0.4), (closed.getsockname()[1], 4.0)):
            url = f"s3://bucket?endpoint_url=http://127.0.0.1:{port}&region=us-east-1"
            store = S3Store(url, timeout_s=timeout_s)
            with pytest.raises(StoreUnavailable, match="can be reached") as caught:
                store.get("sessions/secret-id")
            assert "secret-id" not in str(caught.value)
            if port == silent.getsockname()[1]:
                with store._gate.passed(), pytest.raises(StoreUnavailable, match="another call"):
                    store.get("sessions/secret-id")
            store.close()


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """The error says where to set them."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = S3Store(f"s3://bucket?endpoint_url={endpoint}&region=us-east-1", timeout_s=_TIMEOUT_S)
    with pytest.raises(StoreUnavailable, match="credentials in the environment"):
        store.get("a")
    store.close()


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///a", "s3://key:secret@bucket/a", "s3://bucket?colour=1"]
)
def test_a_url_of_another_form_is_refused(url: str) -> None:
    """The error does not repeat its credentials."""
    with pytest.raises(ConfigError, match="credentials come from") as caught:
        S3Store(url, timeout_s=1)
    assert "secret" not in str(caught.value)
