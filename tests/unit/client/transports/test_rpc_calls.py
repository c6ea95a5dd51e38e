"""The requests of gRPC calls, and the errors of those that have ended."""

from __future__ import annotations

import queue

import grpc
import pytest
from google.rpc.status_pb2 import Status

from ts_stateful.client import ServerRefused, ServerUnreachable
from ts_stateful.client.transports.rpc_calls import (
    GrpcCall,
    Inbox,
    RequestBuilder,
    error_of,
    read,
)
from ts_stateful.client.transports.transport import TransportOptions
from ts_stateful.pb.inference_pb2 import PredictionResponse
from ts_stateful.protocol.requests import Hello


class Ended(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """The end of a call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """See `grpc.Call`."""
        return self._code

    def details(self) -> str:
        """See `grpc.Call`."""
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
    """For example, HAProxy loses the node in the middle of an answer and ends the stream without a status."""
    error = error_of(end, 100)
    assert isinstance(error, ServerUnreachable)
    assert error.retryable


def test_an_unknown_error_of_the_server_is_final() -> None:
    """It is not retried, as it would come again."""
    error = error_of(Ended(grpc.StatusCode.UNKNOWN, "Application error"), 100)
    assert isinstance(error, ServerRefused)
    assert not error.retryable


def test_a_token_goes_in_the_message_too() -> None:
    """TorchServe passes no metadata on to the model; other headers stay in the metadata."""
    options = TransportOptions(headers={"Authorization": "Bearer x", "X-Other": "y"})
    builder = RequestBuilder(options)
    request = builder.request(Hello(), {"rpc": b"StreamPredictions"})
    assert dict(request.input) == {
        "data": b'{"type":"hello"}',
        "authorization": b"Bearer x",
        "rpc": b"StreamPredictions",
    }
    assert builder.metadata(None) == (("authorization", "Bearer x"), ("x-other", "y"))
    assert set(RequestBuilder(TransportOptions()).request(Hello()).input) == {"data"}


def test_the_document_of_an_error_counts_more_than_its_status() -> None:
    """A server without TorchServe sends both in one message. TorchServe's own refusal has no document."""
    document = b'{"error": {"code": "session_not_found", "status": 404}}'
    status = Status(code=5, message="no such session")
    responses = [PredictionResponse(prediction=document, status=status)]
    responses += [PredictionResponse(), PredictionResponse(status=status)]
    inbox: Inbox = queue.SimpleQueue()
    read(GrpcCall(responses), inbox)
    assert inbox.get() == document
    assert isinstance(inbox.get(), ServerRefused)
    assert inbox.get() is None
