"""Errors in answers. `test_requests` checks that each is documented with its status."""

from __future__ import annotations

import pytest

from ts_stateful.protocol.error_bodies import error_classes, error_from_body
from ts_stateful.protocol.errors import (
    InvalidRequest,
    QueueFull,
    StatefulError,
    TooManySessions,
)


def test_an_error_survives_its_body() -> None:
    """Every class, with field and delay."""
    for cls in error_classes().values():
        error = cls("what is wrong", field="images[0].url", retry_after_s=2.5)
        back = error_from_body(error.to_body())
        assert type(back) is cls
        assert vars(back) == vars(error)


def test_an_unknown_code_is_kept_in_the_message() -> None:
    """A newer server may have more codes."""
    error = error_from_body({"error": {"code": "tired", "message": "not now"}})
    assert type(error) is StatefulError
    assert error.message == "tired: not now"
    assert error_from_body({"text": "no error"}) is None


@pytest.mark.parametrize("delay", ["soon", -1.0, True, {}, float("nan")])
def test_invalid_values_in_an_answer_are_ignored(delay: object) -> None:
    """A client could not wait for such a delay."""
    error = error_from_body(
        {"error": {"code": "queue_full", "message": "full", "retry_after_s": delay, "field": 7}}
    )
    assert isinstance(error, QueueFull)
    assert error.field is None
    assert error.retry_after_s is None


def test_long_texts_are_cut() -> None:
    """TorchServe closes the connection right after an error, and the client would lose a part of a long one."""
    error = InvalidRequest("unknown field " + "x" * 100_000, field="x" * 100_000).to_body()["error"]
    assert len(error["message"]) == len(error["field"]) == 400
    assert error["message"].startswith("unknown field xxx")
    assert error["message"].endswith("x…")
    short = TooManySessions("full").to_body()["error"]
    assert short["message"] == "full"
