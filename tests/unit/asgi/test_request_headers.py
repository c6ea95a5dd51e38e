"""Headers at the front: spellings of the session's, and the names of requests."""

from __future__ import annotations

import pytest

from ts_stateful.asgi.model import header_names
from ts_stateful.asgi.request_headers import grpc_headers, http_headers, texts

_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ts_request_sequence_id", "a", ("a",)),
        ("ts-request-sequence-id", " a\t", ("a",)),
        ("ts_request-sequence_id", "a; Expires=2026-01-31T12:00:00Z", ("a",)),
        ("ts_request_sequence_id", "a;expires=x;y", ("a",)),
        ("ts_request_sequence_id", "a;b", ("a;b",)),
        ("ts_request_sequence_id", "", ()),
        ("x-other", "a", ()),
    ],
)
def test_the_session_is_found(name: str, value: str, expected: tuple[str, ...]) -> None:
    """With what an answer has after it; anything else after it stays a part of it."""
    read = http_headers([(name, value)], "", header_names({}))
    assert read.session_ids == expected
    assert read.names_session is (name != "x-other")


def test_the_names_are_those_of_torchserves_worker() -> None:
    """On SageMaker they are others."""
    names = header_names({"TS_REQUEST_SEQUENCE_ID": "X-Amzn-SageMaker-Session-Id"})
    read = http_headers([("x-amzn-sagemaker-session-id", "a")], "", names)
    assert read.session_ids == ("a",)
    assert names.end == "X-Amzn-SageMaker-Closed-Session-Id"


def test_two_sessions_are_both_reported() -> None:
    """So that they can be refused; the same one twice is one."""
    names = header_names({})
    pairs = [("ts_request_sequence_id", "a"), ("ts-request-sequence-id", "b")]
    assert http_headers(pairs, "", names).session_ids == ("a", "b")
    assert http_headers([*pairs[:1], *pairs[:1]], "", names).session_ids == ("a",)


def test_other_headers_are_read() -> None:
    """Type, origin, path, and flags of sequences."""
    pairs = [
        ("content-type", "Application/JSON; charset=utf-8"),
        ("origin", "https://evil.example"),
        ("ts_request_sequence_start", "True"),
    ]
    read = http_headers(pairs, "v1/models", header_names({}))
    assert (read.content_type, read.origin, read.path) == (
        "application/json",
        "https://evil.example",
        "v1/models",
    )
    assert (read.starts, read.ends, read.is_http) == (True, False, True)


def test_a_grpc_message_has_its_own_id_alone() -> None:
    """An empty one is none yet."""
    assert grpc_headers("a").session_ids == ("a",)
    assert grpc_headers("").session_ids == grpc_headers(None).session_ids == ()


def test_metadata_is_read_as_headers_are() -> None:
    """Its bytes as Latin-1, so a principal has one name on both ways; binary values are no text."""
    found = dict(texts([("X-Principal", "Zo\u00eb"), ("x-a-bin", b"1")]))
    assert found == {"x-principal": "Zo\u00eb".encode().decode("latin-1")}
