"""Limits of requests: what is refused before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.config.limits import LimitsConfig
from ts_stateful.frontend.parsing.limits import BodyLimits, Parts
from ts_stateful.protocol.errors import ContextTooLong, InvalidRequest, ServerBusy, StatefulError

KB = 1000
SMALL = BodyLimits(
    LimitsConfig(max_json_bytes=KB, max_json_values=50, max_json_depth=8), max_images=2
)
IMAGE = "QUJD" * 5 * KB
_WORDS = st.sampled_from([*'[]{},:"\\', "\\\\", '\\"', "base64", '"base64":"', "a", "\n", "é"])
_TEXTS = st.lists(_WORDS, max_size=8).map("".join)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=30,
)


# Long enough for image data, with whatever may confuse the search for its end.
_LONG_TEXTS = st.lists(_WORDS | st.just("A" * 1100), min_size=1, max_size=6).map("".join)
_LONG_VALUES = st.dictionaries(
    st.just("base64") | st.just('"base64') | _TEXTS, _LONG_TEXTS | _VALUES, max_size=4
)


class Held:
    """A holder of so many bytes."""

    def __init__(self, bytes_in_flight: int) -> None:
        self.bytes_in_flight = bytes_in_flight

    def bytes_of(self, principal: str | None) -> int:
        return self.bytes_in_flight


def refused(body: Any, limits: BodyLimits = SMALL) -> StatefulError:
    """Return the error of a JSON body."""
    with pytest.raises(StatefulError) as refusal:
        limits.check_json(body)
    return refusal.value


def images(count: int, **fields: Any) -> bytes:
    """Make a request with images of 20 KB."""
    return json.dumps({"images": [{"base64": IMAGE}] * count, **fields}).encode()


def depth_of(value: Any) -> int:
    """Return the levels of objects and arrays in each other."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0)


def count_of(value: Any) -> int:
    """Return the number of values, with an empty object or array as two."""
    if not isinstance(value, dict | list):
        return 1
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(1, sum(map(count_of, inner)))


def test_the_limit_of_the_bytes_is_exact_and_named() -> None:
    """With its value and its key, for text as for JSON."""
    body = b'{"prompt":"' + b"x" * (KB - 13) + b'"}'
    SMALL.check_json(body)
    SMALL.check_text(b"1" * KB, "x")
    error = refused(body + b" ")
    assert isinstance(error, ContextTooLong)
    assert "1001 bytes" in error.message
    assert "1000 (handler.limits.maxJsonBytes)" in error.message
    with pytest.raises(ContextTooLong, match="1001 bytes") as refusal:
        SMALL.check_text(b"1" * (KB + 1), "x")
    assert refusal.value.field == "x"


@pytest.mark.parametrize(
    "body",
    [
        images(2),
        json.dumps({"type": "upload", "base64": IMAGE}).encode(),
        b'{"base64"\n:\t"' + IMAGE.encode() + b'"}',
        json.dumps({"images": [{"url": f"data:image/png;base64,{IMAGE}"}]}).encode(),
        b'{"base64": "' + b"\\/" * 5 * KB + b'A"}',
        json.dumps(
            {"messages": [{"image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]}
        ).encode(),
    ],
)
def test_the_data_of_images_does_not_count(body: bytes) -> None:
    """Whatever the dialect, and however the JSON was written."""
    SMALL.check_json(body)
    SMALL.check_json(bytearray(body))


@pytest.mark.parametrize(
    "body",
    [
        images(3),
        images(1, prompt="x" * KB),
        json.dumps({"prompt": IMAGE}).encode(),
        json.dumps({"images": [{"url": f"https://{IMAGE}"}]}).encode(),
        json.dumps({"prompt": f'"base64": "{IMAGE}"'}).encode(),
        b'{"base64": ' + IMAGE.encode() + b"}",
        b'{"base64": "' + IMAGE.encode(),
        b'"' * 5 * KB,
        b"[]," * 5 * KB,
    ],
)
def test_what_is_no_image_counts(body: bytes) -> None:
    """Also beyond the number of images, in the text of a prompt, and where it is no JSON."""
    assert refused(body).status == 413


def test_image_data_ends_at_its_quote() -> None:
    """The values after it are counted, and an escaped quote does not end it."""
    ones = b"1," * 60 + b"1"
    body = b'{"base64":"' + b"A" * 2 * KB + b'","x":[' + ones + b"]}"
    assert len(json.loads(body)["x"]) == 61
    assert isinstance(refused(body), InvalidRequest)
    body = b'{"base64":"' + b"A" * 2 * KB + b'\\",[' + ones + b'","y":0}'
    assert json.loads(body).keys() == {"base64", "y"}
    assert refused(body).status == 413


@given(st.lists(_LONG_VALUES, min_size=1, max_size=3))
def test_image_data_hides_no_values(value: Any) -> None:
    """Wherever its key occurs, and whatever is escaped in it."""
    body, count = json.dumps(value).encode(), count_of(value)
    for max_values in (count, max(1, count - 1)):
        settings = LimitsConfig(max_json_bytes=len(body) - 1, max_json_values=max_values)
        try:
            BodyLimits(settings).check_json(body)
        except ContextTooLong:
            continue
        except InvalidRequest:
            assert max_values < count
        else:
            assert max_values >= count


@given(_VALUES)
def test_depth_and_values_are_counted_as_the_parser_finds_them(value: Any) -> None:
    """Brackets, commas and quotes in strings are text, however they are escaped."""
    for body in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode()):
        for max_values, max_depth in ((count_of(value), 128), (10**6, max(8, depth_of(value)))):
            settings = LimitsConfig(max_json_values=max_values, max_json_depth=max_depth)
            BodyLimits(settings).check_json(body)
        if count_of(value) > 1:
            settings = LimitsConfig(max_json_values=count_of(value) - 1)
            error = refused(body, BodyLimits(settings))
            assert f"{count_of(value) - 1} values (handler.limits.maxJsonValues)" in error.message


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_limit_of_the_depth_is_exact_and_named(opening: bytes) -> None:
    """Many arrays beside each other are not deep, however many they are."""
    closing = b"]" if opening == b"[" else b"}"
    limits = BodyLimits()
    limits.check_json(opening * 64 + b"1" + closing * 64)
    limits.check_json(b"[" + b",".join([b"[[[1]]]"] * 1000) + b"]")
    error = refused(opening * 65 + b"1" + closing * 65, limits)
    assert "64 levels deep (handler.limits.maxJsonDepth)" in error.message
    refused(opening * 65, limits)
    refused(b'"\\\\\\"[[",' + opening * 65, limits)


def test_the_numbers_of_a_text_are_counted() -> None:
    """By the commas and the whitespace between them."""
    SMALL.check_text(b"1,2\n3" * 16, "x")
    with pytest.raises(InvalidRequest, match="50 values") as refusal:
        SMALL.check_text(b"1,2\n3 " * 17, "x")
    assert refusal.value.field == "x"


def test_the_parts_of_a_request_are_counted() -> None:
    """Images and the few that TorchServe's own clients send."""
    parts = {str(number): b"" for number in range(11)}
    with pytest.raises(InvalidRequest, match="more than 10 parts"):
        SMALL.check_request(parts)
    del parts["0"]
    SMALL.check_request(parts)


def test_bytes_in_flight_are_bounded() -> None:
    """The error names the limit and when to come back. A request that is alone passes."""
    settings = LimitsConfig(max_in_flight_bytes=KB)
    data: Parts = {"data": bytes(400), "file": bytearray(200)}
    BodyLimits(settings, held=Held(400)).check_request(data)
    BodyLimits(settings, held=Held(0)).check_request({"data": bytes(5 * KB)})
    with pytest.raises(ServerBusy, match=r"1000 \(handler.limits.maxInFlightBytes\)") as refusal:
        BodyLimits(settings, held=Held(401)).check_request(data)
    assert refusal.value.retry_after_s == 1.0
    assert refusal.value.retryable
