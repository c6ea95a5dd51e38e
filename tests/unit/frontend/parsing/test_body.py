"""Bodies of requests: JSON, forms and gRPC inputs."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.support.fake_dispatcher import NAMES, START
from tests.support.fake_torchserve import HTTP
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.protocol.errors import InvalidRequest


def read(data: dict[str, Any], headers: dict[str, Any] | None = None) -> RequestBody:
    """Return a body that was read."""
    found = RequestHeaders.read(HTTP if headers is None else headers, NAMES, minting=False)
    body = RequestBody(data, found, NAMES.grpc_inputs)
    assert body.document is body.document, "read twice"
    return body


def typed(content_type: str) -> RequestBody:
    """Return a body that was sent with this content type."""
    body = json.dumps({"prompt": "hi"}).encode()
    return read({"body": body}, {**HTTP, "Content-Type": content_type})


@pytest.mark.parametrize("key", ["data", "body"])
@pytest.mark.parametrize(
    "value",
    [
        b'{"prompt": "hi", "session_id": "a"}',
        bytearray(b'{"prompt": "hi", "session_id": "a"}'),
    ],
)
def test_the_json_comes_under_either_key(key: str, value: bytes | bytearray) -> None:
    """Of a form or a message, or as the whole body."""
    assert read({key: value}).document == {"prompt": "hi", "session_id": "a"}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "\\ud800"}',
        b"7",
        b'{"images": [{"base64": -Infinity}]}',
        b'{"\\udfff": [1, "a"]}',
    ],
)
def test_what_is_not_a_json_object_is_refused(value: bytes) -> None:
    """Also what Python's parser would accept."""
    with pytest.raises(InvalidRequest):
        read({"body": value})


def test_a_form_encoded_body_is_refused_with_the_cure() -> None:
    """What curl sends by default arrives as one key per field, or as nothing."""
    for data in ({'{"prompt": "hi"}': b""}, {}):
        with pytest.raises(InvalidRequest, match="Content-Type: application/json"):
            read(data)


def test_a_form_without_the_json_is_refused_with_the_cure() -> None:
    """Its parts are images."""
    with pytest.raises(InvalidRequest, match="-F data="):
        read({"image": b"PNG"})


@pytest.mark.parametrize("content_type", ["text/plain", "image/png", "application/xml; x=y"])
def test_a_body_of_another_content_type_is_refused(content_type: str) -> None:
    """Even if JSON is in it."""
    with pytest.raises(InvalidRequest, match="Content-Type: application/json") as refusal:
        typed(content_type)
    assert content_type.partition(";")[0] in refusal.value.message
    assert refusal.value.field == "content-type"


@pytest.mark.parametrize(
    "content_type",
    ["Application/JSON; charset=utf-8", "application/octet-stream", "application/x+json", ""],
)
def test_a_content_type_may_be_missing_or_general(content_type: str) -> None:
    """As in requests of clients without a configured type."""
    assert typed(content_type).document == {"prompt": "hi"}


def test_parts_of_a_form_are_images_in_their_order() -> None:
    """The part `data` is the JSON; the names of the others do not matter."""
    data = {"z": bytearray(b"1"), "data": b'{"prompt": "hi"}', "body": b"2", "host": b"3"}
    assert read(data).attachments == (b"1", b"2", b"3")


def test_a_parameter_beside_a_body_is_refused_by_name() -> None:
    """Query parameters arrive as inputs of their own; nothing is ignored silently."""
    with pytest.raises(InvalidRequest) as refusal:
        read({"body": b'{"prompt": "hi"}', "temperature": b"1"})
    assert refusal.value.field == "temperature"


def test_a_compressed_body_is_refused_with_the_cure() -> None:
    """Not as a text in another encoding."""
    with pytest.raises(InvalidRequest, match="it is compressed; send it as it is"):
        read({"body": gzip.compress(b'{"prompt": "hi"}')})


def test_unknown_inputs_of_grpc_are_refused_by_name() -> None:
    """All but those that TorchServe's own clients send beside the JSON."""
    assert not read({"data": b'{"prompt": "hi"}', "rpc": b"x", START: b"true"}, {}).attachments
    with pytest.raises(InvalidRequest) as refusal:
        read({"data": b'{"prompt": "hi"}', "image": b"PNG"}, {})
    assert refusal.value.field == "image"
