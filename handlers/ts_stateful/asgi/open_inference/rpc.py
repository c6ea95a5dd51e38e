"""The gRPC service of the Open Inference Protocol. Requests are those of HTTP, with binary tensors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.message_factory import GetMessageClass

from ts_stateful.asgi.exchange import SubmittedRequest
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.open_inference.messages import body_of, metadata_of, response_of
from ts_stateful.asgi.open_inference.metadata import SERVER, model_metadata
from ts_stateful.asgi.request_headers import infer_headers, texts
from ts_stateful.asgi.rpc.codes import code_of
from ts_stateful.asgi.rpc.in_order import in_order
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.parsing.headers import HEADER_LENGTH
from ts_stateful.frontend.pending_response import Response
from ts_stateful.pb import open_inference_pb2 as pb
from ts_stateful.principals.authenticator import Call
from ts_stateful.protocol.errors import StatefulError

__all__ = ["add_inference_service"]

_Context = Any  # grpc has no types
_SERVICE: Final = "inference.GRPCInferenceService"
"""The name in calls; that of the messages in `protos/` is another one."""


def add_inference_service(server: Any, models: Models) -> None:
    """Let a server answer the calls of the service."""
    service = _InferenceService(models)
    handlers = {}
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        streams = method.client_streaming and method.server_streaming
        handler = (
            grpc.stream_stream_rpc_method_handler
            if streams
            else grpc.unary_unary_rpc_method_handler
        )
        handlers[method.name] = handler(
            getattr(service, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])


class _InferenceService:
    """The methods of `protos/ts_stateful/pb/open_inference.proto`. A call that fails has the gRPC code of its error."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def ServerLive(
        self, request: pb.ServerLiveRequest, context: _Context
    ) -> pb.ServerLiveResponse:
        """Return True: the process answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: pb.ServerReadyRequest, context: _Context
    ) -> pb.ServerReadyResponse:
        """Return True if every model answers."""
        return pb.ServerReadyResponse(ready=self._models.is_ready)

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: _Context
    ) -> pb.ModelReadyResponse:
        """Return True if the model answers."""
        model = await self._about(request, context)
        return pb.ModelReadyResponse(ready=model.is_ready and not self._models.is_draining)

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: _Context
    ) -> pb.ServerMetadataResponse:
        """Return the server's name, version and extensions."""
        return pb.ServerMetadataResponse(**SERVER)

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: _Context
    ) -> pb.ModelMetadataResponse:
        """Return the tensors of the model."""
        return metadata_of(model_metadata(await self._about(request, context)))

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: _Context
    ) -> pb.ModelInferResponse:
        """Answer one request."""
        try:
            async with contextlib.aclosing(await self._exchange(request, context)) as responses:
                response = await anext(responses)
        except StatefulError as error:
            await context.abort(code_of(error.status), _sentence(error))
        if response.status != 200:
            await context.abort(code_of(response.status), _text(response))
        return _message(response)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: _Context
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Answer requests in their order. An error of one is a message, and the stream goes on."""

        async def answers() -> AsyncIterator[_Streamed]:
            async for request in requests:
                try:
                    yield _Streamed(request.id, await self._exchange(request, context))
                except StatefulError as error:
                    yield _Streamed(request.id, error)

        async with contextlib.aclosing(in_order(answers())) as messages:
            async for message in messages:
                yield message

    async def _exchange(self, request: pb.ModelInferRequest, context: _Context) -> SubmittedRequest:
        """Submit a request as it would be over HTTP.

        Raises:
            StatefulError: it reaches no model.
        """
        try:
            model = await self._models.find(request.model_name, request.model_version)
            model.check_room()
        except StatefulError as error:
            self._models.count_refusal(error, request.model_name)
            raise
        body, header_length = body_of(request)
        metadata = tuple(texts(context.invocation_metadata() or ()))
        headers, known = infer_headers(header_length), Correlation.of(metadata)
        arrival = Arrival({"body": body}, headers, Call(metadata), known)
        return SubmittedRequest(model, arrival)

    async def _about(
        self, request: pb.ModelReadyRequest | pb.ModelMetadataRequest, context: _Context
    ) -> ModelFront:
        try:
            return self._models.get(request.name, request.version)
        except StatefulError as error:
            await context.abort(code_of(error.status), error.message)
            raise


class _Streamed:
    """The one message of an answer in a stream, or of a request that reaches no model."""

    def __init__(self, tag: str, exchange: SubmittedRequest | StatefulError) -> None:
        self._tag = tag
        self._exchange = exchange

    async def __aiter__(self) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        if isinstance(self._exchange, StatefulError):
            error = _sentence(self._exchange)
        else:
            response = await anext(self._exchange)
            await self.aclose()  # an answer that its client is slow to read is no request in flight
            if response.status == 200:
                yield pb.ModelStreamInferResponse(infer_response=_message(response))
                return
            error = _text(response)
        failed = pb.ModelInferResponse(id=self._tag)
        yield pb.ModelStreamInferResponse(error_message=error, infer_response=failed)

    async def aclose(self) -> None:
        """Drop the request if it is not answered."""
        if isinstance(self._exchange, SubmittedRequest):
            await self._exchange.aclose()


def _sentence(error: StatefulError) -> str:
    """Return the message of an error, with its field as over HTTP."""
    return error.message if error.field is None else f"{error.field}: {error.message}"


def _text(response: Response) -> str:
    return str(msgspec.json.decode(response.body)["error"])


def _message(response: Response) -> pb.ModelInferResponse:
    return response_of(response.body, int(response.headers[HEADER_LENGTH]))
