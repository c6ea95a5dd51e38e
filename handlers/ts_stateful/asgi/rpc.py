"""TorchServe's gRPC inference service at the front: every stream gets its messages as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from ts_stateful.asgi.exchange import exchange
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.request_headers import grpc_headers, texts
from ts_stateful.config.access import JwtAuth
from ts_stateful.frontend.admission import call_of
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.body import PUSHED
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.pending_response import Response
from ts_stateful.pb.inference_pb2 import (
    PredictionResponse,
    PredictionsRequest,
    TorchServeHealthResponse,
)
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceServicer
from ts_stateful.principals.authenticator import Call
from ts_stateful.protocol.errors import StatefulError

__all__ = ["InferenceService"]

_Context = Any  # grpc has no types
_MAX_AHEAD: Final = 64  # requests of one call that wait for their turn to be answered
_CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    410: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""The canonical code of each status of an error (https://grpc.io/docs/guides/status-codes)."""


class InferenceService(InferenceAPIsServiceServicer):
    """The service of `protos/`.

    An error of a request is its document in `prediction`, and its gRPC code in `status` of the same message. The call itself
    ends with OK, because clients would not get the document of a call that fails. A call that reaches no model fails.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    async def Ping(self, request: Empty, context: _Context) -> TorchServeHealthResponse:
        """Return the server's health in TorchServe's words."""
        return TorchServeHealthResponse(health="Healthy" if self._models.is_ready else "Unhealthy")

    async def Predictions(
        self, request: PredictionsRequest, context: _Context
    ) -> PredictionResponse | None:
        """Answer one request by one message."""
        model = await self._model(request, context)
        request.input.pop("rpc", None)
        async with contextlib.aclosing(_responses(model, request, context)) as responses:
            async for response in responses:
                return _message(response, request)
        return None

    async def StreamPredictions(
        self, request: PredictionsRequest, context: _Context
    ) -> AsyncIterator[PredictionResponse]:
        """Answer one request by its messages."""
        model = await self._model(request, context)
        request.input["rpc"] = PUSHED
        async with contextlib.aclosing(_responses(model, request, context)) as responses:
            async for response in responses:
                yield _message(response, request)

    async def StreamPredictions2(
        self, requests: AsyncIterator[PredictionsRequest], context: _Context
    ) -> AsyncIterator[PredictionResponse]:
        """Answer requests in their order. A client that half-closes gets the rest of its answers."""
        queue: asyncio.Queue[_Answer | None] = asyncio.Queue(_MAX_AHEAD)
        reader = asyncio.ensure_future(self._read(requests, context, queue))
        try:
            while (answer := await queue.get()) is not None:
                async for message in answer.messages():
                    yield message
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            while not queue.empty():
                left = queue.get_nowait()
                if left is not None:
                    await left.close()

    async def _read(
        self,
        requests: AsyncIterator[PredictionsRequest],
        context: _Context,
        queue: asyncio.Queue[_Answer | None],
    ) -> None:
        """Submit requests as they come."""
        try:
            async for request in requests:
                model = await self._model(request, context)
                request.input["rpc"] = PUSHED
                await queue.put(_Answer(_responses(model, request, context), request))
        finally:
            await queue.put(None)

    async def _model(self, request: PredictionsRequest, context: _Context) -> ModelFront:
        try:
            model = await self._models.find(request.model_name, request.model_version)
            model.check_room()
        except StatefulError as error:
            await context.abort(_CODES[error.status], error.message)
        return model


class _Answer:
    """The messages of one answer, which are collected while earlier answers are sent."""

    def __init__(
        self, responses: AsyncGenerator[Response, None], request: PredictionsRequest
    ) -> None:
        self._queue: asyncio.Queue[Response | None] = asyncio.Queue()
        self._request = request
        self._task = asyncio.ensure_future(self._collect(responses))

    async def messages(self) -> AsyncIterator[PredictionResponse]:
        """Yield the messages."""
        try:
            while (response := await self._queue.get()) is not None:
                yield _message(response, self._request)
            await self._task
        finally:
            await self.close()

    async def close(self) -> None:
        """Drop the request if it is not answered to the end."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _collect(self, responses: AsyncGenerator[Response, None]) -> None:
        try:
            async with contextlib.aclosing(responses):
                async for response in responses:
                    self._queue.put_nowait(response)
        finally:
            self._queue.put_nowait(None)


def _responses(
    model: ModelFront, request: PredictionsRequest, context: _Context
) -> AsyncGenerator[Response, None]:
    metadata = tuple(texts(context.invocation_metadata() or ()))
    data: dict[str, Any] = dict(request.input)
    session_id = request.sequence_id if request.HasField("sequence_id") else None
    # A proxy sets metadata. A token may be in the message instead, as for TorchServe.
    auth = model.config.engine.auth
    in_message = isinstance(auth, JwtAuth) and not any(
        name == auth.header.lower() for name, _ in metadata
    )
    call = call_of(data, in_message=True) if in_message else Call(metadata)
    known = Correlation.of(metadata)
    return exchange(model, Arrival(data, grpc_headers(session_id), call, known))


def _message(response: Response, request: PredictionsRequest) -> PredictionResponse:
    message = PredictionResponse(prediction=response.body)
    if request.HasField("sequence_id"):
        message.sequence_id = request.sequence_id
    if response.status != 200:
        code: int = _CODES.get(response.status, grpc.StatusCode.UNKNOWN).value[0]
        message.status.CopyFrom(Status(code=code, message=_text(response.body)))
    return message


def _text(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
