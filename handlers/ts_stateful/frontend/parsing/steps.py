"""From a row of a batch to a step of a model with recurrent state: JSON, raw bodies, and what headers say of the sequence.

Owns which part of a request is what, and checks tensors against the model's declarations: an engine gets none that is not as
declared. Pure: no model, no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ts_stateful.config.schema import StateConfig
from ts_stateful.frontend.parsing.headers import HeaderNames, RowHeaders
from ts_stateful.protocol.declarations import Raw
from ts_stateful.protocol.errors import InvalidRequest, SessionIdMismatch
from ts_stateful.protocol.requests import SequenceParameters, Step
from ts_stateful.protocol.tensors import Elements, read_inputs

__all__ = ["Content", "StepReader"]

_JSON_TYPES = ("application/json", "multipart/form-data")


class Content(NamedTuple):
    """A request apart: its JSON, the raw inputs beside it, whether the body itself was raw, and keys that nobody knows."""

    document: Any
    raw: dict[str, bytes]
    body_is_raw: bool
    others: dict[str, Any]


class StepReader:
    """Reads the steps of one model."""

    def __init__(self, settings: StateConfig, names: HeaderNames) -> None:
        self._declared = [tensor for tensor in settings.inputs if not tensor.is_derived]
        self._outputs = [tensor.name for tensor in settings.outputs]
        self._raw = next((tensor for tensor in self._declared if tensor.raw), None)
        self._names = names

    @property
    def hint(self) -> str:
        """How a body is sent with curl."""
        json_hint = "send the JSON as the body, with -H 'Content-Type: application/json'"
        if self._raw is None:
            return json_hint
        kind = "text/plain" if self._raw.raw is Raw.TEXT else "application/octet-stream"
        return f"{json_hint}, or {self._raw.name} alone with -H 'Content-Type: {kind}'"

    def take_apart(self, data: Mapping[str, Any], headers: RowHeaders) -> Content:
        """Finds the JSON and the raw input in what TorchServe hands over."""
        others = dict(data)
        raw: dict[str, bytes] = {}
        if self._raw is not None and self._raw.name in others:
            raw[self._raw.name] = _bytes(others.pop(self._raw.name), self._raw.name)
        key = next((name for name in ("data", "body") if name in others), None)
        body = others.pop(key) if key is not None else None
        if body is None:
            return Content({"type": "step"} if raw else None, raw, bool(raw), others)
        if self._raw is not None and not raw and self._is_raw(body, headers):
            return Content({"type": "step"}, {self._raw.name: _bytes(body, "data")}, True, others)
        return Content(body, raw, False, others)

    def complete(self, step: Step, headers: RowHeaders, flags: Mapping[str, Any]) -> Step:
        """The step with what headers, gRPC inputs (`flags`) and Triton's parameters say of its sequence.

        Raises:
            SessionIdMismatch: two of them name different sequences.
        """
        parameters = step.parameters
        session_id = step.session_id
        if parameters.sequence_id not in (None, 0, ""):
            named = str(parameters.sequence_id)
            if session_id not in (None, named):
                raise SessionIdMismatch("differs from `session_id`", field="parameters.sequence_id")
            session_id = named
        return msgspec.structs.replace(
            step,
            session_id=session_id,
            start=step.start
            or parameters.sequence_start
            or headers.starts
            or _says(flags, self._names.starts),
            end=step.end
            or parameters.sequence_end
            or headers.ends
            or _says(flags, self._names.ends),
            parameters=SequenceParameters(),
        )

    def elements(self, step: Step, raw: Mapping[str, bytes]) -> list[Elements]:
        """The elements of the model's inputs, in their order.

        Raises:
            InvalidRequest: a tensor is not as declared.
        """
        for index, output in enumerate(step.outputs):
            if output.name not in self._outputs:
                raise InvalidRequest(
                    f"the model gives {', '.join(self._outputs)}", field=f"outputs[{index}].name"
                )
        return read_inputs(self._declared, step.inputs, raw)

    def _is_raw(self, body: Any, headers: RowHeaders) -> bool:
        if not isinstance(body, str | bytes | bytearray):
            return False
        if headers.content_type:
            return headers.content_type not in _JSON_TYPES
        # Nothing tells: text can be told from an object, a sample cannot.
        assert self._raw is not None
        return self._raw.raw is Raw.TEXT and not _bytes(body, "data").lstrip().startswith(b"{")


def _says(flags: Mapping[str, Any], names: frozenset[str]) -> bool:
    return any(
        name.lower() in names and value in (b"true", "true") for name, value in flags.items()
    )


def _bytes(value: Any, name: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise InvalidRequest("not bytes", field=name)
