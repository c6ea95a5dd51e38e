"""TorchServe's gRPC inference service at the front: every stream gets its messages as they come."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from ts_stateful.asgi.exchange import submit
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.request_headers import grpc_headers, texts
from ts_stateful.asgi.rpc.codes import code_of
from ts_stateful.asgi.rpc.in_order import in_order
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
        async with contextlib.aclosing(_Answer(model, request, _metadata(context))) as messages:
            async for message in messages:
                return message
        return None

    async def StreamPredictions(
        self, request: PredictionsRequest, context: _Context
    ) -> AsyncIterator[PredictionResponse]:
        """Answer one request by its messages."""
        model = await self._model(request, context)
        answer = _Answer(model, request, _metadata(context), pushed=True)
        async with contextlib.aclosing(answer) as messages:
            async for message in messages:
                yield message

    async def StreamPredictions2(
        self, requests: AsyncIterator[PredictionsRequest], context: _Context
    ) -> AsyncIterator[PredictionResponse]:
        """Answer requests in their order. A client that half-closes gets the rest of its answers."""
        async with contextlib.aclosing(in_order(self._answers(requests, context))) as messages:
            async for message in messages:
                yield message

    async def _answers(
        self, requests: AsyncIterator[PredictionsRequest], context: _Context
    ) -> AsyncIterator[_Answer]:
        """Yield the answers to requests as these come."""
        metadata = _metadata(context)
        async for request in requests:
            model = await self._model(request, context)
            yield _Answer(model, request, metadata, pushed=True)

    async def _model(self, request: PredictionsRequest, context: _Context) -> ModelFront:
        try:
            model = await self._models.find(request.model_name, request.model_version)
            model.check_room()
        except StatefulError as error:
            self._models.count_refusal(error, request.model_name)
            await context.abort(code_of(error.status), error.message)
        return model


_Metadata = tuple[tuple[str, str], ...]


class _Answer(AsyncIterator[PredictionResponse]):
    """The messages of one answer. The request is submitted at once; see `Submitted`."""

    def __init__(
        self,
        model: ModelFront,
        request: PredictionsRequest,
        metadata: _Metadata,
        *,
        pushed: bool = False,
    ) -> None:
        self._request = request
        self._exchange = submit(model, _arrival(model, request, metadata, pushed=pushed))
        self.aclose = self._exchange.aclose

    async def __anext__(self) -> PredictionResponse:
        response = await anext(self._exchange)
        if not response.more:
            await self.aclose()  # an answer that its client is slow to read is no request in flight
        return _message(response, self._request)


def _metadata(context: _Context) -> _Metadata:
    return tuple(texts(context.invocation_metadata() or ()))


def _arrival(
    model: ModelFront, request: PredictionsRequest, metadata: _Metadata, *, pushed: bool
) -> Arrival:
    data: dict[str, Any] = {name: request.input[name] for name in request.input if name != "rpc"}
    if pushed:
        data["rpc"] = PUSHED
    session_id = request.sequence_id if request.HasField("sequence_id") else None
    # A proxy sets metadata. A token may be in the message instead, as for TorchServe.
    auth = model.config.engine.auth
    in_message = isinstance(auth, JwtAuth) and not any(
        name == auth.header.lower() for name, _ in metadata
    )
    call = call_of(data, in_message=True) if in_message else Call(metadata)
    return Arrival(data, grpc_headers(session_id), call, Correlation.of(metadata))


def _message(response: Response, request: PredictionsRequest) -> PredictionResponse:
    message = PredictionResponse(prediction=response.body)
    if request.HasField("sequence_id"):
        message.sequence_id = request.sequence_id
    if response.status != 200:
        code: int = code_of(response.status).value[0]
        message.status.CopyFrom(Status(code=code, message=_text(response.body)))
    return message


def _text(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
