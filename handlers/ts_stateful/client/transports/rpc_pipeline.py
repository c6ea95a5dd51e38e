"""Steps of one sequence over one gRPC stream, sent without waiting for each other's answers.

The client's side ends only after all answers: TorchServe's sequence profile does not survive an earlier end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping

from ts_stateful.client.errors import ClientError, DeadlineExceeded, ServerUnreachable
from ts_stateful.client.transports.rpc_calls import (
    GOODBYE_S,
    GrpcCall,
    Inbox,
    Outgoing,
    RequestBuilder,
    read,
)
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.protocol.requests import Command

__all__ = ["GrpcPipeline"]

_TIMEOUT_S = 86_400.0  # a microphone is on for long; every answer has a deadline of its own


class GrpcPipeline:
    """The stream of one sequence; see `Pipeline`."""

    def __init__(
        self, stub: InferenceAPIsServiceStub, builder: RequestBuilder, session_id: str
    ) -> None:
        self._builder = builder
        self._session_id = session_id
        self._inbox: Inbox = queue.SimpleQueue()
        self._num_missing = 0
        requests: Outgoing = queue.SimpleQueue()
        responses = stub.StreamPredictions2(
            iter(requests.get, None), timeout=_TIMEOUT_S, metadata=builder.metadata(session_id)
        )
        self._call = GrpcCall(responses, requests=requests)
        self._reader = threading.Thread(
            target=read, args=(self._call, self._inbox), daemon=True, name="grpc-reader"
        )
        self._reader.start()

    def send(self, command: Command, raw: Mapping[str, bytes]) -> None:
        """See `Pipeline.send`."""
        self._call.requests.put(self._builder.request(command, raw, self._session_id))
        self._num_missing += 1

    def receive(self, timeout_s: float) -> bytes:
        """See `Pipeline.receive`; a stream that has broken raises the same error again."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s (timeout_s)") from None
        if message is None:
            message = ServerUnreachable("the server ended the stream")
        if isinstance(message, ClientError):
            self._inbox.put(message)
            raise message
        self._num_missing -= 1
        return message

    def close(self) -> None:
        """See `Pipeline.close`."""
        if not self._num_missing:
            self._call.half_close()
            self._reader.join(GOODBYE_S)
        self._call.responses.cancel()  # of no effect on a call that has ended
        self._call.half_close()
