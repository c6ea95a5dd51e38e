"""client.calls_grpc: what the status of a call that has ended means."""

from __future__ import annotations

import grpc
import pytest

from ts_stateful.client import ServerRefused, ServerUnreachable
from ts_stateful.client.errors import is_retryable
from ts_stateful.client.transports.rpc_calls import error_of


class Ended(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """The end of a call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """As gRPC has it."""
        return self._code

    def details(self) -> str:
        """As gRPC has it."""
        return self._details


@pytest.mark.parametrize(
    "end",
    [
        Ended(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        Ended(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        Ended(grpc.StatusCode.UNKNOWN, "Stream removed (Data frame with END_STREAM flag received)"),
    ],
)
def test_an_answer_that_breaks_off_may_be_asked_for_again(end: Ended) -> None:
    """As where HAProxy, which has passed a part of it on, loses the node, and ends the stream without a status."""
    error = error_of(end, 100)
    assert isinstance(error, ServerUnreachable)
    assert is_retryable(error)


def test_an_unknown_error_of_the_server_is_final() -> None:
    """Asked for again it would come again."""
    error = error_of(Ended(grpc.StatusCode.UNKNOWN, "Application error"), 100)
    assert isinstance(error, ServerRefused)
    assert not is_retryable(error)
