"""Errors as clients get them. That each is documented with its status is in `test_protocol`."""

from __future__ import annotations

import pytest

from ts_stateful.protocol.errors import (
    InvalidRequest,
    QueueFull,
    StatefulError,
    TooManySessions,
    error_classes,
    error_from_body,
)


def test_an_error_comes_back_as_it_went() -> None:
    """Every class through its body, with field and delay."""
    for cls in error_classes().values():
        error = cls("what is wrong", field="images[0].url", retry_after_s=2.5)
        back = error_from_body(error.to_body())
        assert type(back) is cls
        assert vars(back) == vars(error)


def test_an_unknown_code_is_kept_in_the_message() -> None:
    """A newer server may have more of them."""
    error = error_from_body({"error": {"code": "tired", "message": "not now"}})
    assert type(error) is StatefulError
    assert error.message == "tired: not now"
    assert error_from_body({"text": "no error"}) is None


@pytest.mark.parametrize("delay", ["soon", -1.0, True, {}, float("nan")])
def test_what_a_server_says_wrongly_is_not_said(delay: object) -> None:
    """Whoever waits for so long would fail otherwise."""
    error = error_from_body(
        {"error": {"code": "queue_full", "message": "full", "retry_after_s": delay, "field": 7}}
    )
    assert isinstance(error, QueueFull)
    assert error.field is None
    assert error.retry_after_s is None


def test_what_a_client_made_long_is_cut_short() -> None:
    """TorchServe closes the connection behind an error, and the client would lose a part of a long one."""
    error = InvalidRequest("unknown field " + "x" * 100_000, field="x" * 100_000).to_body()["error"]
    assert len(error["message"]) == len(error["field"]) == 400
    assert error["message"].startswith("unknown field xxx")
    assert error["message"].endswith("x…")
    short = TooManySessions("full").to_body()["error"]
    assert short["message"] == "full"
