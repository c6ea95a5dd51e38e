"""Messages of the gRPC service as bodies over HTTP, and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ts_stateful.asgi.open_inference.messages import body_of, response_of
from ts_stateful.pb.open_inference_pb2 import InferParameter, ModelInferRequest
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import InvalidRequest


def request(num_raw: int = 0) -> ModelInferRequest:
    """Return a request with one input and so many raw contents."""
    made = ModelInferRequest(model_name="m")
    made.inputs.add(name="x", datatype="INT32", shape=[2])
    made.raw_input_contents.extend([b"\1\0\0\0\2\0\0\0"] * num_raw)
    return made


def test_raw_contents_follow_the_json() -> None:
    """Parameters keep their types; all outputs are binary."""
    made = request(num_raw=1)
    made.id = "7"
    made.parameters["sequence_id"].uint64_param = 2**64 - 1
    made.parameters["empty"].CopyFrom(InferParameter())
    made.outputs.add(name="y")
    body, length = body_of(made)
    assert body[length:] == made.raw_input_contents[0]
    assert json.loads(body[:length]) == {
        "id": "7",
        "inputs": [
            {"name": "x", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {"sequence_id": 2**64 - 1, "binary_data_output": True},
    }


def test_typed_contents() -> None:
    """Whole numbers are checked as those of JSON are; floats keep what JSON lacks."""
    made = request()
    made.inputs[0].contents.int_contents.extend([1, -2])
    body, length = body_of(made)
    assert json.loads(body[:length])["inputs"][0]["data"] == [1, -2]
    for datatype in ("FP64", ""):  # that of the field
        floats = request()
        floats.inputs[0].datatype = datatype
        floats.inputs[0].contents.fp64_contents.extend([0.1, float("nan")])
        body, length = body_of(floats)
        assert json.loads(body[:length])["inputs"][0]["datatype"] == "FP64"
        np.testing.assert_array_equal(np.frombuffer(body[length:], "<f8"), [0.1, np.nan])


@pytest.mark.parametrize(
    ("datatype", "sent", "remedy"),
    [
        ("INT32", "fp32_contents", "in int_contents, or in raw_input_contents"),
        ("INT64", "fp64_contents", "in int64_contents, or in raw_input_contents"),
        ("FP32", "fp64_contents", "in fp32_contents, or in raw_input_contents"),
        ("FP64", "fp32_contents", "in fp64_contents, or in raw_input_contents"),
        ("FP16", "fp32_contents", "in raw_input_contents"),
        ("INT32", "", "in int_contents, or in raw_input_contents"),
    ],
)
def test_floats_in_the_field_of_another_datatype_are_refused(
    datatype: str, sent: str, remedy: str
) -> None:
    """Their bytes would be read as other numbers. The error names the input and the field of its datatype."""
    made = request()
    made.inputs[0].datatype = datatype
    if sent:
        getattr(made.inputs[0].contents, sent).extend([1, 2])
    with pytest.raises(InvalidRequest) as refused:
        body_of(made)
    assert refused.value.field == "inputs[0].contents"
    assert refused.value.message.startswith(f"input x has its elements in {sent or 'no field'};")
    assert refused.value.message.endswith(f"send those of {datatype} {remedy}")


def test_contents_that_do_not_fit_the_inputs() -> None:
    """Too many, both kinds, none, two fields, and texts."""
    both, two, texts = request(1), request(), request()
    both.inputs[0].contents.int_contents.append(1)
    two.inputs[0].contents.int_contents.append(1)
    two.inputs[0].contents.bool_contents.append(True)
    texts.inputs[0].contents.bytes_contents.append(b"a")
    for made, field in (
        (request(2), "raw_input_contents"),
        (both, "inputs[0].contents"),
        (request(), "inputs[0].contents"),
        (two, "inputs[0].contents"),
        (texts, "inputs[0].contents"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            body_of(made)
        assert refused.value.field == field


def test_an_answer_as_a_message() -> None:
    """Each output has its bytes; a sequence id is a number or a text, as it was sent."""
    outputs = [
        {
            "name": name,
            "datatype": "UINT8",
            "shape": [size],
            "parameters": {"binary_data_size": size},
        }
        for name, size in (("a", 1), ("b", 2))
    ]
    for session, field in (("s", "string_param"), (5, "int64_param"), (2**63, "uint64_param")):
        document = {
            "model_name": "m",
            "model_version": "1.0",
            "outputs": outputs,
            "parameters": {"sequence_id": session},
        }
        header = encode(document)
        response = response_of(header + b"\1\2\3", len(header))
        assert list(response.raw_output_contents) == [b"\1", b"\2\3"]
        assert [output.name for output in response.outputs] == ["a", "b"]
        assert getattr(response.parameters["sequence_id"], field) == session
