"""Several requests in one body."""

from __future__ import annotations

import pytest

from ts_stateful.config.limits import LimitsConfig
from ts_stateful.frontend.parsing.batch import split_batch
from ts_stateful.frontend.parsing.limits import BodyLimits
from ts_stateful.protocol.errors import ContextTooLong, InvalidRequest

LIMITS = BodyLimits(max_images=0)


def test_each_request_is_as_if_it_had_come_alone() -> None:
    """Its text stays as it is, with what came beside the JSON; so errors are those of single requests."""
    body = b'{"type": "batch", "requests": [{"inputs": []}, {"a": 1, "a": "\\""}, 7]}'
    data = {"data": body, "authorization": b"Bearer x"}
    assert split_batch(data, LIMITS) == [
        {"data": text, "authorization": b"Bearer x"}
        for text in (b'{"inputs": []}', b'{"a": 1, "a": "\\""}', b"7")
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "step", "id": "x"}',
        b'{"type": "step", "id": "batch"}',
        b'{"inputs": [{"name": "batch", "data": [1]}]}',
        b'["batch"]',
        b'"batch"',
        b'{"type": "batch", "requests": [{}',  # no JSON
        b'\xff"batch"\x00',
        b"",
    ],
)
def test_another_body_is_left_to_its_parser(body: bytes) -> None:
    """Also one that only mentions the word, or that cannot be read."""
    assert split_batch({"body": body}, LIMITS) is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"type": "batch"}', "requests"),
        (b'{"type": "batch", "requests": []}', "requests"),
        (b'{"type": "batch", "requests": {"a": 1}}', "requests"),
        (b'{"type": "batch", "requests": [{}], "session_id": "s"}', "session_id"),
        (b'{"type": "batch", "requests": [{}], "requests": [{"a": "b"}]}', "requests"),
        (b'{"type": "batch", "type": "batch", "requests": [{}]}', "type"),
        (b'{"type": "batch", "requests": [{"a": NaN}]}', "requests[0].a"),
    ],
)
def test_a_batch_of_another_form_is_refused(body: bytes, field: str | None) -> None:
    """The error names the field."""
    with pytest.raises(InvalidRequest) as caught:
        split_batch({"body": body}, LIMITS)
    assert caught.value.field == field


def test_the_limits_are_those_of_the_whole_body() -> None:
    """They bound what is read before any of its requests is."""
    limits = BodyLimits(LimitsConfig(max_json_bytes=100, max_json_values=12), max_images=0)
    body = b'{"type": "batch", "requests": [%b]}'
    assert split_batch({"body": body % b"{}"}, limits) == [{"body": b"{}"}]
    with pytest.raises(ContextTooLong):
        split_batch({"body": body % (b"{}" + 90 * b" ")}, limits)
    with pytest.raises(InvalidRequest, match="more than 12 values"):
        split_batch({"body": body % b",".join(9 * [b"{}"])}, limits)
