"""Triton's own gRPC client, unmodified, on models with recurrent state, at the front without TorchServe."""

from __future__ import annotations

import queue
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.speak import DEADLINE_S
from tests.e2e.state_server import AsgiStateModels
from tests.e2e.steps import new_id

with warnings.catch_warnings():  # its code is of an older protobuf
    warnings.simplefilter("ignore")
    from tritonclient.grpc import (
        InferenceServerClient,
        InferInput,
        InferRequestedOutput,
        InferResult,
        service_pb2,
    )


@pytest.fixture
def client(asgi_state_models: AsgiStateModels) -> Iterator[InferenceServerClient]:
    """A client of the shared server."""
    url = asgi_state_models.server.grpc_url.removeprefix("grpc://")
    with InferenceServerClient(url) as made:
        yield made


def number(value: int, shape: tuple[int, ...] = (1,)) -> list[InferInput]:
    """Return the inputs of a step of the ledger."""
    made = InferInput("number", list(shape), "INT64")
    made.set_data_from_numpy(np.full(shape, value, np.int64))
    return [made]


def test_health_and_metadata(client: InferenceServerClient) -> None:
    """Of the server and of its models."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ledger")
    assert "sequence" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("meter", as_json=True)
    assert metadata["inputs"] == [{"name": "samples", "datatype": "FP32", "shape": ["-1"]}]
    with pytest.raises(InferenceServerException, match="no model 'none'") as refused:
        client.get_model_metadata("none")
    assert refused.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("session", [2**40 + 1, "a-text"])
def test_a_sequence(client: InferenceServerClient, session: int | str) -> None:
    """Its id is a number or a text, and comes back as it was."""
    sums = []
    for value in (1, 2, 3):
        result = client.infer(
            "ledger",
            number(value, (1, 1)),
            outputs=[InferRequestedOutput("sum")],
            sequence_id=session,
            sequence_start=value == 1,
            sequence_end=value == 3,
            request_id=f"step {value}",
            priority=1,
            timeout=10**6,
        )
        response = result.get_response()
        assert (response.id, response.model_name) == (f"step {value}", "ledger")
        assert response.model_version == "1.0"
        named = response.parameters["sequence_id"]
        assert getattr(named, named.WhichOneof("parameter_choice")) == session
        sums.append(result.as_numpy("sum").tolist())
    assert sums == [[[1]], [[3]], [[6]]]


def test_elements_in_typed_fields(client: InferenceServerClient) -> None:
    """As clients without numpy send them; floats have all their values."""
    message = service_pb2.ModelInferRequest(model_name="meter")
    tensor = message.inputs.add(name="samples", datatype="FP32", shape=[3])
    tensor.contents.fp32_contents.extend([float("inf"), 1.0, float("nan")])
    message.parameters["sequence_end"].bool_param = True
    response = client._client_stub.ModelInfer(message, timeout=DEADLINE_S)
    halves = InferResult(response).as_numpy("halves")
    np.testing.assert_array_equal(halves, np.array([np.inf, 0.5, np.nan], np.float32))
    ledger = service_pb2.ModelInferRequest(model_name="ledger")
    tensor = ledger.inputs.add(name="number", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(7)
    ledger.parameters["sequence_end"].bool_param = True
    response = client._client_stub.ModelInfer(ledger, timeout=DEADLINE_S)
    assert InferResult(response).as_numpy("sum").tolist() == [7]


def test_errors_have_grpc_codes(client: InferenceServerClient) -> None:
    """And name the field."""
    with pytest.raises(InferenceServerException, match=r"inputs\[0\].shape") as refused:
        client.infer("ledger", number(1, (2,)))
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    session = new_id()
    client.infer("ledger", number(1), sequence_id=session)
    with pytest.raises(InferenceServerException, match="internal error") as failed:
        client.infer("ledger", number(13), sequence_id=session)
    assert failed.value.status() == "StatusCode.INTERNAL"
    result = client.infer("ledger", number(2), sequence_id=session, sequence_end=True)
    assert result.as_numpy("sum").tolist() == [3]


def test_two_sequences_over_one_stream(client: InferenceServerClient) -> None:
    """Answers come in the order of the requests; an error is one of them, and does not end the stream."""
    heard: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    sessions = new_id(), new_id()
    for index, value in enumerate((1, 2, 3)):
        for factor, session in zip((1, 10), sessions, strict=True):
            client.async_stream_infer(
                "ledger",
                number(factor * value),
                sequence_id=session,
                sequence_start=index == 0,
                sequence_end=index == 2,
            )
    client.async_stream_infer("ledger", number(1, (2,)), request_id="wrong")
    client.async_stream_infer("none", number(1))
    client.async_stream_infer("ledger", number(5), sequence_end=True, sequence_id=new_id())
    answers = [heard.get(timeout=DEADLINE_S) for _ in range(9)]
    client.stop_stream()
    sums = [result.as_numpy("sum").tolist() for result, error in answers if error is None]
    assert sums == [[1], [10], [3], [30], [6], [60], [5]]
    assert "inputs[0].shape" in answers[6][1].message()
    assert "no model 'none'" in answers[7][1].message()
