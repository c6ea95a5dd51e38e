"""Answers of the Open Inference Protocol."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from ts_stateful.frontend.open_inference.requests import read_request
from ts_stateful.frontend.open_inference.responder import InferErrors, InferResponder
from ts_stateful.frontend.parsing.headers import HeaderNames
from ts_stateful.frontend.parsing.limits import BodyLimits
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.protocol.answers import PackedAnswer, PackedTensor, encode
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Event, EventKind

NAMES = HeaderNames("id", "end", frozenset(), frozenset(), frozenset())
ELEMENTS = np.array([0.5, np.inf], "<f4")
FLOATS = PackedTensor("floats", "FP32", (2,), ELEMENTS.tobytes())
FLAGS = PackedTensor("flags", "BOOL", (1,), b"\1")
DONE = Event(
    "r",
    EventKind.LAST,
    msgspec.msgpack.encode(PackedAnswer("m", (FLOATS, FLAGS))),
    session_id="s",
    content_type=PackedAnswer.content_type,
)


def responder(*, has_rows: bool = False, **fields: Any) -> InferResponder:
    """Return the responder of a request."""
    body = json.dumps({"inputs": [], **fields}).encode()
    return InferResponder(read_request(body, None, BodyLimits()), "1.0", has_rows=has_rows)


def test_an_answer_in_json() -> None:
    """What JSON lacks is null; the sequence has the name that the client gave it."""
    whole = responder(id="7", parameters={"sequence_id": 5}).whole(DONE)
    assert (whole.status, whole.content_type, whole.headers) == (200, "application/json", {})
    assert json.loads(whole.body) == {
        "model_name": "m",
        "model_version": "1.0",
        "id": "7",
        "outputs": [
            {"name": "floats", "datatype": "FP32", "shape": [2], "data": [0.5, None]},
            {"name": "flags", "datatype": "BOOL", "shape": [1], "data": [True]},
        ],
        "parameters": {"sequence_id": 5},
    }


@pytest.mark.parametrize(
    ("fields", "binary"),
    [
        ({"parameters": {"binary_data_output": True}}, ("floats", "flags")),
        ({"outputs": [{"name": "floats", "parameters": {"binary_data": True}}]}, ("floats",)),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "floats", "parameters": {"binary_data": False}}],
            },
            ("flags",),
        ),
    ],
)
def test_binary_outputs_follow_the_json(fields: dict[str, Any], binary: tuple[str, ...]) -> None:
    """In their order; the header has the length of the JSON."""
    whole = responder(has_rows=True, **fields).whole(DONE)
    length = int(whole.headers["Inference-Header-Content-Length"])
    document, tail = json.loads(whole.body[:length]), whole.body[length:]
    assert document["parameters"] == {"sequence_id": "s"}
    for output, tensor in zip(document["outputs"], (FLOATS, FLAGS), strict=True):
        assert output["shape"] == [1, *tensor.shape]
        assert ("data" in output) is not (tensor.name in binary)
        if tensor.name in binary:
            size = output["parameters"]["binary_data_size"]
            assert tail[:size] == tensor.data
            tail = tail[size:]
    assert not tail


def test_an_answer_whose_headers_are_gone_is_json() -> None:
    """The header with the length of its JSON would come too late."""
    pending = PendingResponse("r", ClientKind.HTTP, NAMES)
    pending.responder = responder(parameters={"binary_data_output": True})
    assert pending.begin().more is True
    pending.add([DONE])
    response = pending.next()
    assert response is not None
    assert json.loads(response.body)["outputs"][1]["data"] == [True]


@pytest.mark.parametrize("kind", [ClientKind.HTTP, ClientKind.GRPC])
def test_the_first_response_has_the_header(kind: ClientKind) -> None:
    """Over HTTP, and for the gRPC service, which reads it."""
    pending = PendingResponse("r", kind, NAMES)
    pending.responder = responder(parameters={"binary_data_output": True})
    pending.add([DONE])
    response = pending.next()
    assert response is not None
    length = int(response.headers["Inference-Header-Content-Length"])
    assert json.loads(response.body[:length])["model_name"] == "m"


def test_errors_are_one_text() -> None:
    """With the field; of a request that was read, and of one that was not."""
    error = InvalidRequest("must be FP32", field="inputs[0].datatype")
    event = Event("r", EventKind.LAST, encode(error.to_body()), status=400)
    for writer in (InferErrors(), responder()):
        whole = writer.whole(event)
        assert whole.status == 400
        assert json.loads(whole.body) == {"error": "inputs[0].datatype: must be FP32"}
        assert writer.piece(event) == whole.body
