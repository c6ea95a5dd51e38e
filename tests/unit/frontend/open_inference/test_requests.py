"""Requests of the Open Inference Protocol, well formed and hostile."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.state_harness import state_settings
from ts_stateful.frontend.parsing.headers import HeaderNames, RequestHeaders
from ts_stateful.frontend.parsing.steps import StepParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Encoding, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import OutputName, Step

NAMES = HeaderNames(
    "ts_request_sequence_id",
    "ts_request_sequence_end",
    frozenset({"ts_request_sequence_id"}),
    frozenset({"ts_request_sequence_start"}),
    frozenset({"ts_request_sequence_end"}),
)
# As TorchServe hands on a request to /v2/models/<name>/infer.
KSERVE = {"host": "localhost", "explain": "False"}
LENGTH = "Inference-Header-Content-Length"
SETTINGS = state_settings(
    inputs=[
        {"name": "x", "datatype": "FP32", "shape": [-1]},
        {"name": "flag", "datatype": "BOOL", "shape": [1]},
    ],
    outputs=[{"name": "y", "shape": [1]}],
    states=[{"name": "h", "shape": [1]}],
)
TWO = np.array([1.5, np.nan], "<f4").tobytes()


def tensor(name: str, shape: Any, size: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return an input; with a `size`, its elements follow the JSON."""
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": name, "shape": shape, **parameters, **fields}


X, FLAG = tensor("x", [2], 8, datatype="FP32"), tensor("flag", [1], data=[True])


def parse(
    document: Any, tail: bytes = b"", length: Any = None, **headers: str
) -> tuple[Submit, PendingResponse]:
    """Parse a body, by default with the right length of its JSON."""
    header = document if isinstance(document, bytes) else json.dumps(document).encode()
    if length is None and tail:
        length = len(header)
    if length is not None:
        headers[LENGTH] = str(length)
    parser = StepParser(Profile.CONTINUOUS, NAMES, SETTINGS, version="1.0")
    pending = PendingResponse("r", ClientKind.HTTP, NAMES)
    read = RequestHeaders.read({**KSERVE, **headers}, NAMES, minting=False)
    return parser.parse(pending, {"body": header + tail}, read), pending


def test_binary_and_json_tensors_of_one_request() -> None:
    """Bytes keep what JSON lacks; outputs and the sequence are those of the request."""
    document = {
        "id": "7",
        "inputs": [X, FLAG],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {
            "sequence_id": 2**63 + 1,
            "sequence_start": True,
            "sequence_end": True,
            "priority": 3,
            "timeout": 1,
        },
    }
    message, pending = parse(document, TWO)
    command = message.command
    assert isinstance(command, Step)
    assert (command.session_id, command.start, command.end) == (str(2**63 + 1), True, True)
    assert command.outputs == (OutputName("y"),)
    assert (message.attachments, message.shapes) == ((TWO, b"\1"), ((2,), (1,)))
    assert message.encoding is Encoding.PACKED
    assert pending.ignored == ("parameters.priority", "parameters.timeout")


def test_the_session_header_counts_too() -> None:
    """Also as an answer had it."""
    header = {"ts_request_sequence_id": "7; Expires=2026-01-31T12:00:00Z"}
    message, _ = parse({"inputs": [X, FLAG]}, TWO, **header)
    assert message.command.session_id == "7"
    with pytest.raises(StatefulError) as refused:
        parse({"inputs": [X, FLAG], "parameters": {"sequence_id": 8}}, TWO, **header)
    assert refused.value.code == "session_id_mismatch"
    assert refused.value.field == "parameters.sequence_id"
    assert "`parameters.sequence_id`" in refused.value.message


@pytest.mark.parametrize(
    ("inputs", "tail", "field"),
    [
        ([tensor("x", [2], 8), FLAG], TWO[:7], "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2], 8), FLAG], b"", "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2], 7), FLAG], TWO[:7], "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [3], 8), FLAG], TWO, "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2], 2**61), FLAG], TWO, "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2], 2**70), FLAG], TWO, "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2], -8), FLAG], TWO, "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2], "8"), FLAG], TWO, "inputs[0].parameters.binary_data_size"),  # type: ignore[arg-type]
        ([tensor("x", [2], 8, data=[1, 2]), FLAG], TWO, "inputs[0].parameters.binary_data_size"),
        ([X, FLAG], TWO + b"\0", LENGTH),
        ([X, tensor("flag", [1], 1)], TWO + b"\2", "inputs[1].parameters.binary_data_size"),
        ([tensor("x", [-2], 8), FLAG], TWO, "inputs[0].shape[0]"),
        ([tensor("x", [2**31, 2**31, 2], 8), FLAG], TWO, "inputs[0].parameters.binary_data_size"),
        ([tensor("x", [2**40], 8), FLAG], TWO, "inputs[0].shape[0]"),
        ([tensor("x", [1] * 17, 8), FLAG], TWO, "inputs[0].shape"),
        ([tensor("x", [2], 8, datatype="FP64"), FLAG], TWO, "inputs[0].datatype"),
        ([tensor("x", [2], 8, datatype="BYTES"), FLAG], TWO, "inputs[0].datatype"),
        ([tensor("x", [2], 8, datatype="\ud83d"), FLAG], TWO, None),
        ([tensor("x", [2]), FLAG], b"", "inputs[0].data"),
        ([tensor("none", [2], 8), FLAG], TWO, "inputs[0].name"),
        ([X], TWO, "inputs"),
        ([tensor("x", [0], 0), FLAG], b"", "inputs[0].shape"),
        (
            [tensor("x", [2], parameters={"shared_memory_region": "r"}), FLAG],
            b"",
            "inputs[0].parameters.shared_memory_region",
        ),
    ],
)
def test_bytes_that_are_not_the_tensors(
    inputs: list[dict[str, Any]], tail: bytes, field: str | None
) -> None:
    """Wrong counts, shapes and datatypes are 400, and the error names the field."""
    with pytest.raises(StatefulError) as refused:
        parse({"inputs": inputs}, tail)
    assert (refused.value.status, refused.value.field) == (400, field)


@pytest.mark.parametrize("length", [0, -1, 10**6, 10**30, "1e2", "", "\u0661", "0x10", " 5"])
def test_a_length_of_the_json_that_cannot_be(length: Any) -> None:
    """Beyond the body, none, or no number."""
    with pytest.raises(StatefulError) as refused:
        parse({"inputs": [X, FLAG]}, TWO, length)
    assert (refused.value.status, refused.value.field) == (400, LENGTH)


def test_a_length_that_cuts_the_json() -> None:
    """It is not JSON then."""
    with pytest.raises(StatefulError, match="not JSON") as refused:
        parse({"inputs": [X, FLAG]}, TWO, 20)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"outputs": [{"name": "none"}]}, "outputs[0].name"),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
            "outputs[0].parameters.classification",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            "outputs[0].parameters.shared_memory_region",
        ),
        ({"parameters": {"sequence_id": True}}, "parameters.sequence_id"),
        ({"parameters": {"sequence_start": 1}}, "parameters.sequence_start"),
        ({"parameters": {"sequence_id": "a/b"}}, "parameters.sequence_id"),
        ({"parameters": 5}, "parameters"),
        ({"id": 5}, "id"),
        ({"raw": 5}, "raw"),
    ],
)
def test_fields_of_the_document(fields: dict[str, Any], field: str) -> None:
    """Those that would change the answer are refused; so are unknown ones."""
    with pytest.raises(StatefulError) as refused:
        parse({"inputs": [X, FLAG], **fields}, TWO)
    assert (refused.value.status, refused.value.field) == (400, field)


def test_a_body_that_is_missing() -> None:
    """It is 400, too."""
    parser = StepParser(Profile.CONTINUOUS, NAMES, SETTINGS)
    pending = PendingResponse("r", ClientKind.HTTP, NAMES)
    read = RequestHeaders.read(KSERVE, NAMES, minting=False)
    with pytest.raises(StatefulError, match="no body"):
        parser.parse(pending, {}, read)
