"""Messages of the Open Inference Protocol's gRPC service, to and from the bodies that it has over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from ts_stateful.asgi.open_inference.metadata import ModelMetadata
from ts_stateful.pb.open_inference_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataResponse,
)
from ts_stateful.protocol.errors import InvalidRequest

__all__ = ["body_of", "metadata_of", "response_of"]

# The fields whose elements JSON has, with all their values.
_EXACT: Final = (
    "bool_contents",
    "int_contents",
    "int64_contents",
    "uint_contents",
    "uint64_contents",
)
_FLOATS: Final = {"fp32_contents": "<f4", "fp64_contents": "<f8"}


def body_of(request: ModelInferRequest) -> tuple[bytes, int]:
    """Return a request as a body over HTTP, and the bytes of its JSON. The outputs that it asks for are binary.

    Raises:
        InvalidRequest: the elements of an input are missing, or there are too many.
    """
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequest(
            f"{len(raw)} contents for {len(request.inputs)} inputs; send one for each",
            field="raw_input_contents",
        )
    tensors: list[bytes] = []
    inputs = []
    for index, tensor in enumerate(request.inputs):
        if raw and tensor.HasField("contents"):
            raise InvalidRequest(
                "excludes raw_input_contents; send one of them", field=f"inputs[{index}].contents"
            )
        data = raw[index] if raw else _elements(tensor.contents, index)
        inputs.append(_input(tensor, data))
        if isinstance(data, bytes):
            tensors.append(data)
    header: dict[str, Any] = {
        "inputs": inputs,
        "outputs": [
            {"name": one.name, "parameters": _document(one.parameters) | {"binary_data": True}}
            for one in request.outputs
        ],
        "parameters": _document(request.parameters) | {"binary_data_output": True},
    }
    if request.id:
        header["id"] = request.id
    text = msgspec.json.encode(header)
    return b"".join((text, *tensors)), len(text)


def response_of(body: bytes, header_length: int) -> ModelInferResponse:
    """Return the message of a body over HTTP, all of whose outputs are binary."""
    document = msgspec.json.decode(body[:header_length])
    response = ModelInferResponse(
        model_name=document["model_name"],
        model_version=document["model_version"],
        id=document.get("id", ""),
    )
    for name, value in document.get("parameters", {}).items():
        response.parameters[name].CopyFrom(_parameter(value))
    at = header_length
    for output in document["outputs"]:
        size = output["parameters"]["binary_data_size"]
        response.outputs.add(
            name=output["name"], datatype=output["datatype"], shape=output["shape"]
        )
        response.raw_output_contents.append(body[at : at + size])
        at += size
    return response


def metadata_of(model: ModelMetadata) -> ModelMetadataResponse:
    """Return the metadata of a model as a message."""
    response = ModelMetadataResponse(
        name=model.name, versions=model.versions, platform=model.platform
    )
    for tensors, added in ((model.inputs, response.inputs), (model.outputs, response.outputs)):
        for one in tensors:
            added.add(name=one.name, datatype=one.datatype, shape=one.shape)
    return response


def _input(tensor: ModelInferRequest.InferInputTensor, data: Any) -> dict[str, Any]:
    document = {"name": tensor.name, "shape": list(tensor.shape)}
    if tensor.datatype:
        document["datatype"] = tensor.datatype
    parameters = _document(tensor.parameters)
    if isinstance(data, bytes):
        return document | {"parameters": parameters | {"binary_data_size": len(data)}}
    return document | {"parameters": parameters, "data": data}


def _elements(contents: InferTensorContents, index: int) -> Any:
    """Return the elements of the one field that has some: a list, or of floats their bytes, as JSON has not all floats."""
    fields = [(field.name, value) for field, value in contents.ListFields()]
    if len(fields) != 1 or fields[0][0] not in (*_EXACT, *_FLOATS):
        raise InvalidRequest(
            "must have one field of numbers; send the elements there, or in raw_input_contents",
            field=f"inputs[{index}].contents",
        )
    ((name, values),) = fields
    return list(values) if name in _EXACT else np.array(values, _FLOATS[name]).tobytes()


def _document(parameters: Mapping[str, InferParameter]) -> dict[str, Any]:
    kinds = (
        (value.WhichOneof("parameter_choice"), key, value) for key, value in parameters.items()
    )
    return {key: getattr(value, kind) for kind, key, value in kinds if kind is not None}


def _parameter(value: int | str) -> InferParameter:
    if isinstance(value, str):
        return InferParameter(string_param=value)
    return (
        InferParameter(int64_param=value) if value < 2**63 else InferParameter(uint64_param=value)
    )
