"""Answers of the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType

from ts_stateful.frontend.dialects.dialect import Responder, Whole
from ts_stateful.frontend.dialects.responder import EngineError
from ts_stateful.frontend.open_inference.requests import InferRequest
from ts_stateful.frontend.parsing.headers import HEADER_LENGTH
from ts_stateful.protocol.answers import PackedAnswer, PackedTensor, encode
from ts_stateful.protocol.declarations import Datatype
from ts_stateful.protocol.events import Event
from ts_stateful.protocol.tensors import numpy_dtype

__all__ = ["InferErrors", "InferResponder", "infer_error"]

_BINARY = "application/octet-stream"


class _Refusal(Struct, frozen=True):
    error: EngineError


class _InferOutput(Struct, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class _InferAnswer(Struct, frozen=True, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_InferOutput]
    id: str | None = None
    parameters: dict[str, int | str] = {}


_packed = msgspec.msgpack.Decoder(PackedAnswer).decode
_refusal = msgspec.json.Decoder(_Refusal).decode


def infer_error(sentence: str) -> bytes:
    """Write an error, which is one string in this protocol."""
    return encode({"error": sentence})


class InferErrors(Responder):
    """The writer of errors, for requests that cannot be read."""

    def whole(self, event: Event) -> Whole:
        """See `Responder`."""
        return Whole(event.status, infer_error(_refusal(event.body).error.sentence))

    def piece(self, event: Event) -> bytes:
        """See `Responder`."""
        return self.whole(event).body


class InferResponder(InferErrors):
    """The writer of the answer to one request to a model of this `version`.

    With `has_rows`, the client's shapes begin with the number of rows, which is 1, and so do those of outputs.
    """

    def __init__(self, request: InferRequest, version: str, *, has_rows: bool) -> None:
        self._request = request
        self._version = version
        self._has_rows = has_rows

    def whole(self, event: Event) -> Whole:
        """See `Responder`."""
        return self._written(event, takes_binary=True)

    def piece(self, event: Event) -> bytes:
        """Write an answer whose HTTP headers were sent before: all of it is JSON."""
        return self._written(event, takes_binary=False).body

    def _written(self, event: Event, *, takes_binary: bool) -> Whole:
        if event.content_type != PackedAnswer.content_type:
            return super().whole(event)
        packed, request = _packed(event.body), self._request
        outputs, tensors = list[_InferOutput](), list[bytes]()
        for one in packed.outputs:
            is_binary = takes_binary and request.is_binary(one.name)
            outputs.append(self._output(one, is_binary))
            tensors += [one.data] if is_binary else []
        named = request.parameters.sequence_id or event.session_id
        document = _InferAnswer(
            packed.model_name,
            self._version,
            outputs,
            request.id,
            {} if named is None else {"sequence_id": named},
        )
        header = encode(document)
        if not tensors:
            return Whole(event.status, header)
        headers = {HEADER_LENGTH: str(len(header))}
        return Whole(event.status, b"".join((header, *tensors)), _BINARY, headers)

    def _output(self, tensor: PackedTensor, is_binary: bool) -> _InferOutput:
        shape = (1, *tensor.shape) if self._has_rows else tensor.shape
        if is_binary:
            parameters = {"binary_data_size": len(tensor.data)}
            return _InferOutput(tensor.name, tensor.datatype, shape, parameters)
        dtype = numpy_dtype(Datatype(tensor.datatype))
        data = np.frombuffer(tensor.data, dtype).tolist()
        return _InferOutput(tensor.name, tensor.datatype, shape, data=data)
