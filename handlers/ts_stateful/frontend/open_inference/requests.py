"""Requests of the Open Inference Protocol, with the binary tensors of its extension.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from ts_stateful.frontend.parsing.headers import HEADER_LENGTH
from ts_stateful.frontend.parsing.limits import BodyLimits
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import InputTensor, Shape
from ts_stateful.protocol.strict_json import convert, parse_json

__all__ = ["InferRequest", "RequestedOutput", "read_request"]

_ID = Annotated[str, Meta(max_length=256)]


class _InputParameters(Struct, frozen=True):
    binary_data_size: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    shared_memory_region: Any = None


class _Input(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    shape: Shape | None = None
    datatype: str | None = None
    parameters: _InputParameters = _InputParameters()
    data: Any = None


class _OutputParameters(Struct, frozen=True):
    binary_data: bool | None = None
    classification: Any = None
    shared_memory_region: Any = None


class RequestedOutput(Struct, frozen=True, forbid_unknown_fields=True):
    """One output that a request asks for."""

    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Parameters(Struct, frozen=True):
    """Parameters with an effect. Triton passes others on to its backends."""

    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False
    binary_data_output: bool = False


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    inputs: tuple[_Input, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    id: _ID | None = None
    parameters: _Parameters = _Parameters()


class InferRequest(Struct, frozen=True):
    """One request. Of an input that was sent as bytes, `data` is these bytes. `ignored` parameters have no effect."""

    inputs: tuple[InputTensor, ...]
    outputs: tuple[RequestedOutput, ...]
    id: str | None
    parameters: _Parameters
    ignored: tuple[str, ...]

    def is_binary(self, name: str) -> bool:
        """Return True if the client wants this output as bytes."""
        asked = (one.parameters.binary_data for one in self.outputs if one.name == name)
        found = next(asked, None)
        return self.parameters.binary_data_output if found is None else found


def read_request(
    body: bytes | bytearray | None, header_length: str | None, limits: BodyLimits
) -> InferRequest:
    """Read a body, whose JSON has `header_length` bytes if that is given, and else all.

    Raises:
        InvalidRequest: it is not such a request, or its bytes are not those that it announces.
        StatefulError: it exceeds a limit.
    """
    header, tensors = _split(body, header_length)
    limits.check_json(header)
    document = parse_json(header)
    asked: _Document = convert(document, _Document)
    for index, output in enumerate(asked.outputs):
        _check_output(output, f"outputs[{index}].parameters")
    known = _Parameters.__struct_fields__
    ignored = tuple(
        f"parameters.{key}" for key in document.get("parameters", ()) if key not in known
    )
    inputs = tuple(_inputs(asked.inputs, tensors))
    return InferRequest(inputs, asked.outputs, asked.id, asked.parameters, ignored)


def _split(body: bytes | bytearray | None, header_length: str | None) -> tuple[bytes, bytes]:
    if body is None:
        raise InvalidRequest("the request has no body; send its JSON")
    body = bytes(body)
    if header_length is None:
        return body, b""
    length = int(header_length) if re.fullmatch("[0-9]{1,18}", header_length) else -1
    if not 0 < length <= len(body):
        raise InvalidRequest(
            f"{header_length[:20]!r} is no length of a JSON in a body of {len(body)} bytes; send its number of bytes",
            field=HEADER_LENGTH,
        )
    return body[:length], body[length:]


def _inputs(sent: Sequence[_Input], tensors: bytes) -> Iterator[InputTensor]:
    """Give each input its elements; the bytes are in the order of the inputs."""
    at = 0
    for index, one in enumerate(sent):
        path = f"inputs[{index}].parameters"
        if one.parameters.shared_memory_region is not None:
            raise InvalidRequest(
                "the server shares no memory with clients; send the data",
                field=f"{path}.shared_memory_region",
            )
        size = one.parameters.binary_data_size
        if size is None and one.data is None:
            raise InvalidRequest("is missing; send the elements", field=f"inputs[{index}].data")
        if size is not None and one.data is not None:
            raise InvalidRequest(
                "excludes `data`; send one of them", field=f"{path}.binary_data_size"
            )
        data = one.data
        if size is not None:
            if size > len(tensors) - at:
                raise InvalidRequest(
                    f"{size} bytes are announced, and the body has {len(tensors) - at} more; send all"
                    f" after the JSON, and its length in {HEADER_LENGTH}",
                    field=f"{path}.binary_data_size",
                )
            data = tensors[at : at + size]
            at += size
        yield InputTensor(one.name, data, one.datatype, one.shape)
    if at != len(tensors):
        raise InvalidRequest(
            f"{len(tensors) - at} bytes follow the last input; announce them in its binary_data_size",
            field=HEADER_LENGTH,
        )


def _check_output(output: RequestedOutput, path: str) -> None:
    for name in ("classification", "shared_memory_region"):
        if getattr(output.parameters, name):
            raise InvalidRequest("is not supported; leave it out", field=f"{path}.{name}")
