"""Messages of the Open Inference Protocol's gRPC service, to and from the bodies that it has over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from ts_stateful.asgi.open_inference.metadata import ModelMetadata
from ts_stateful.pb.open_inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataResponse,
)
from ts_stateful.protocol.errors import InvalidRequest

__all__ = ["body_of", "metadata_of", "response_of"]

# The fields whose elements JSON has, with all their values: they fit every datatype that has the values.
_EXACT: Final = (
    "bool_contents",
    "int_contents",
    "int64_contents",
    "uint_contents",
    "uint64_contents",
)
_FLOATS: Final = {"fp32_contents": ("FP32", "<f4"), "fp64_contents": ("FP64", "<f8")}
# The field of each datatype. FP16 and BF16 have none: https://github.com/kserve/open-inference-protocol
_FIELDS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def body_of(request: ModelInferRequest) -> tuple[bytes, int]:
    """Return a request as a body over HTTP, and the bytes of its JSON. The outputs that it asks for are binary.

    Raises:
        InvalidRequest: the elements of an input are missing, are those of another datatype, or there are too many.
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
        datatype, data = (tensor.datatype, raw[index]) if raw else _elements(tensor, index)
        inputs.append(_input(tensor, datatype, data))
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


def _input(tensor: ModelInferRequest.InferInputTensor, datatype: str, data: Any) -> dict[str, Any]:
    document = {"name": tensor.name, "shape": list(tensor.shape)}
    if datatype:
        document["datatype"] = datatype
    parameters = _document(tensor.parameters)
    if isinstance(data, bytes):
        return document | {"parameters": parameters | {"binary_data_size": len(data)}}
    return document | {"parameters": parameters, "data": data}


def _elements(tensor: ModelInferRequest.InferInputTensor, index: int) -> tuple[str, Any]:
    """Return the datatype, and the elements of the one field that has some.

    These are a list, or of floats their bytes, as JSON has not all floats. Bytes are of the datatype of their field.
    """
    fields = {field.name: list(values) for field, values in tensor.contents.ListFields()}
    name, values = next(iter(fields.items()), ("", []))
    if len(fields) == 1 and name in _EXACT:
        return tensor.datatype, values
    datatype, dtype = _FLOATS.get(name, ("", ""))
    if len(fields) == 1 and datatype and tensor.datatype in ("", datatype):
        return datatype, np.array(values, dtype).tobytes()
    own = _FIELDS.get(tensor.datatype)
    takes = f"{own}, or in raw_input_contents" if own else "raw_input_contents"
    raise InvalidRequest(
        f"input {tensor.name[:64]} has its elements in {' and '.join(fields) or 'no field'}; send those of"
        f" {tensor.datatype[:16] or 'an input without a datatype'} in {takes}",
        field=f"inputs[{index}].contents",
    )


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
