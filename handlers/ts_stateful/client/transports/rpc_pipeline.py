"""Steps of one sequence over one gRPC stream, sent without waiting for each other's answers.

Owns the stream's two directions. The client's side is not ended before all answers are here: TorchServe's sequence profile does
not survive that.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ts_stateful.client.errors import ClientError, DeadlineExceeded, ServerUnreachable
from ts_stateful.client.transports.rpc_calls import GOODBYE_S, Call, Inbox, read
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.protocol.requests import Command

__all__ = ["GrpcPipeline"]


class GrpcPipeline:
    """See `Pipeline`. `start` makes the call from the iterator of its requests; `build` makes a request."""

    def __init__(
        self,
        start: Callable[[Iterator[PredictionsRequest]], Any],
        build: Callable[[Command, Mapping[str, bytes]], PredictionsRequest],
    ) -> None:
        self._build = build
        self._requests: queue.SimpleQueue[PredictionsRequest | None] = queue.SimpleQueue()
        self._inbox: Inbox = queue.SimpleQueue()
        self._num_missing = 0
        responses = start(iter(self._requests.get, None))
        self._call = Call(responses, lambda: self._requests.put(None), 0)
        self._reader = threading.Thread(
            target=read, args=(self._call, self._inbox), daemon=True, name="grpc-reader"
        )
        self._reader.start()

    def send(self, command: Command, raw: Mapping[str, bytes]) -> None:
        """See `Pipeline.send`."""
        self._requests.put(self._build(command, raw))
        self._num_missing += 1

    def receive(self, timeout_s: float) -> bytes:
        """See `Pipeline.receive`; a stream that has broken raises the same error again."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s") from None
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
