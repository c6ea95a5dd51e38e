"""The gRPC service of the Open Inference Protocol, over a connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc.aio
import pytest

from tests.support.fake_front import FakeFront
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.open_inference.rpc import add_inference_service
from ts_stateful.pb import open_inference_pb2 as pb

COUNTER = {
    "model": "m.py:M",
    "inputs": [{"name": "x", "datatype": "INT32", "shape": [2]}],
    "outputs": [{"name": "y"}],
    "states": [{"name": "h"}],
}


async def answers(request: pb.ModelInferRequest) -> tuple[Any, Any]:
    """Send a request alone and in a stream; return the error of the call and the message of the stream."""
    server = grpc.aio.server()
    front = cast("ModelFront", FakeFront("m", {"handler": COUNTER}))
    add_inference_service(server, Models([front]))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        service = "/inference.GRPCInferenceService"
        encode = pb.ModelInferRequest.SerializeToString
        call = channel.unary_unary(
            f"{service}/ModelInfer", encode, pb.ModelInferResponse.FromString
        )
        stream = channel.stream_stream(
            f"{service}/ModelStreamInfer", encode, pb.ModelStreamInferResponse.FromString
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request)
        (message,) = [message async for message in stream([request])]
    await server.stop(None)
    return refused.value, message


def test_contents_of_another_kind_are_refused_by_their_input() -> None:
    """The call has the code of an invalid request; a stream has the same text."""
    request = pb.ModelInferRequest(model_name="m", id="7")
    tensor = request.inputs.add(name="x", datatype="INT32", shape=[2])
    tensor.contents.fp32_contents.extend([1, 2])
    error, message = asyncio.run(answers(request))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("inputs[0].contents: input x has its elements in fp32")
    assert (message.error_message, message.infer_response.id) == (error.details(), "7")
