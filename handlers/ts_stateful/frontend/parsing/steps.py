"""Requests to a model with recurrent state: JSON, raw bodies, and the flags of the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ts_stateful.config.schema import StateConfig
from ts_stateful.frontend.dialects.served_model import UnknownPath
from ts_stateful.frontend.open_inference.requests import read_request
from ts_stateful.frontend.open_inference.responder import InferResponder
from ts_stateful.frontend.parsing.body import check_inputs, split
from ts_stateful.frontend.parsing.headers import HeaderNames, RequestHeaders
from ts_stateful.frontend.parsing.limits import BodyLimits, Parts
from ts_stateful.frontend.parsing.requests import address
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.protocol.declarations import Raw
from ts_stateful.protocol.errors import InvalidRequest, SessionIdMismatch
from ts_stateful.protocol.events import Encoding, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import (
    OutputName,
    Request,
    SequenceParameters,
    Step,
    parse_request,
)
from ts_stateful.protocol.strict_json import parse_json
from ts_stateful.protocol.tensors import Elements, has_row_dimension, read_inputs

__all__ = ["StepParser"]

_STEP = b'{"type": "step"}'  # of raw inputs alone
_SEQUENCE_ID = "parameters.sequence_id"
_JSON_TYPES = ("application/json", "multipart/form-data")


class _Parts(NamedTuple):
    """Parts of a request: its JSON, raw inputs beside it, and unknown keys."""

    document: bytes | bytearray
    raw: dict[str, bytes]
    body_is_raw: bool
    others: Parts


_NO_PARTS = _Parts(b"", {}, False, {})


class StepParser:
    """Parser of requests to one model of this `version`. It checks tensors against the model's declarations."""

    def __init__(
        self,
        profile: Profile,
        names: HeaderNames,
        settings: StateConfig,
        limits: BodyLimits | None = None,
        version: str = "",
    ) -> None:
        self._profile = profile
        self._names = names
        self._limits = limits or BodyLimits(max_images=0)
        self._version = version
        self._declared = [tensor for tensor in settings.inputs if not tensor.is_derived]
        self._outputs = [tensor.name for tensor in settings.outputs]
        self._raw = next((tensor for tensor in self._declared if tensor.raw), None)

    def parse(self, pending: PendingResponse, data: Parts, headers: RequestHeaders) -> Submit:
        """See `Parser`."""
        if headers.infers:
            return self._infer(pending, data, headers)
        if headers.is_openai:
            raise UnknownPath("this model takes steps, and has no path of OpenAI's API")
        self._limits.check_request(data)
        parts = self._take_apart(data, headers)
        if headers.is_http and parts.others:
            name = next(iter(parts.others))
            raise InvalidRequest("not an input that takes raw bytes", field=name[:64])
        check_inputs(parts.others, self._names.grpc_inputs)
        self._limits.check_json(parts.document)
        request = _request(parts, headers)
        if not isinstance(request, Step):
            if parts.raw:
                raise InvalidRequest("only `step` takes raw bytes", field="type")
            command, creates_session = address(request, headers)
            return Submit(
                pending.request_id,
                command,
                creates_session=creates_session,
                profile=self._profile,
                num_bytes=pending.num_bytes,
            )
        encoding = Encoding.RAW if parts.body_is_raw else Encoding.JSON
        return self._submit(pending, request, headers, parts, encoding)

    def _infer(self, pending: PendingResponse, data: Parts, headers: RequestHeaders) -> Submit:
        """Read a request of the Open Inference Protocol, which is a step."""
        self._limits.check_request(data)
        asked = read_request(data.get("body"), headers.header_length, self._limits)
        sequence = asked.parameters
        named = SequenceParameters(
            sequence.sequence_id, sequence.sequence_start, sequence.sequence_end
        )
        outputs = tuple(OutputName(output.name) for output in asked.outputs)
        step = Step(inputs=asked.inputs, outputs=outputs, parameters=named)
        message = self._submit(pending, step, headers, _NO_PARTS, Encoding.PACKED)
        has_rows = has_row_dimension(self._declared, asked.inputs)
        pending.responder = InferResponder(asked, self._version, has_rows=has_rows)
        pending.ignored = asked.ignored
        return message

    def _submit(
        self,
        pending: PendingResponse,
        step: Step,
        headers: RequestHeaders,
        parts: _Parts,
        encoding: Encoding,
    ) -> Submit:
        field = _SEQUENCE_ID if step.session_id is None else "session_id"
        completed = self._complete(step, headers, parts.others)
        command, creates_session = address(completed, headers, field=field)
        elements = self._elements(step, parts.raw)
        return Submit(
            pending.request_id,
            command,
            tuple(tensor.data for tensor in elements),
            creates_session=creates_session,
            shapes=tuple(tensor.shape for tensor in elements),
            encoding=encoding,
            profile=self._profile,
            num_bytes=pending.num_bytes,
        )

    @property
    def _hint(self) -> str:
        """Describe how to send a body with curl."""
        json_hint = "send the JSON as the body, with -H 'Content-Type: application/json'"
        if self._raw is None:
            return json_hint
        kind = "text/plain" if self._raw.raw is Raw.TEXT else "application/octet-stream"
        return f"{json_hint}, or {self._raw.name} alone with -H 'Content-Type: {kind}'"

    def _take_apart(self, data: Parts, headers: RequestHeaders) -> _Parts:
        others = dict(data)
        raw: dict[str, bytes] = {}
        if self._raw is not None and self._raw.name in others:
            raw[self._raw.name] = bytes(others.pop(self._raw.name))
        key = "data" if "data" in others else "body"
        if key not in others:
            if not raw:
                split(data, self._hint)  # raises
            return _Parts(_STEP, raw, True, others)
        body = others.pop(key)
        if self._raw is not None and not raw and self._is_raw(body, headers):
            return _Parts(_STEP, {self._raw.name: bytes(body)}, True, others)
        return _Parts(body, raw, False, others)

    def _complete(self, step: Step, headers: RequestHeaders, flags: Parts) -> Step:
        """Add the sequence's id and flags from headers, gRPC inputs (`flags`) and Triton's parameters; leave its inputs out."""
        parameters = step.parameters
        session_id = step.session_id
        if parameters.sequence_id not in (None, 0, ""):
            named = str(parameters.sequence_id)
            if session_id not in (None, named):
                raise SessionIdMismatch("differs from `session_id`", field=_SEQUENCE_ID)
            session_id = named
        starts = step.start or parameters.sequence_start or headers.starts
        ends = step.end or parameters.sequence_end or headers.ends
        return msgspec.structs.replace(
            step,
            inputs=(),
            session_id=session_id,
            start=starts or _has_flag(flags, self._names.starts),
            end=ends or _has_flag(flags, self._names.ends),
            parameters=SequenceParameters(),
        )

    def _elements(self, step: Step, raw: Mapping[str, bytes]) -> list[Elements]:
        """Return the elements of the model's inputs, in their order."""
        for index, output in enumerate(step.outputs):
            if output.name not in self._outputs:
                raise InvalidRequest(
                    f"the model has no such output; it has {', '.join(self._outputs)}",
                    field=f"outputs[{index}].name",
                )
        if self._raw is not None and self._raw.raw is Raw.TEXT:
            for name, text in raw.items():
                self._limits.check_text(text, name)
        return read_inputs(self._declared, step.inputs, raw)

    def _is_raw(self, body: bytes | bytearray, headers: RequestHeaders) -> bool:
        if headers.content_type:
            return headers.content_type not in _JSON_TYPES
        # Without a type, text differs from a JSON object by its first character; samples do not.
        assert self._raw is not None
        return self._raw.raw is Raw.TEXT and not bytes(body).lstrip().startswith(b"{")


def _request(parts: _Parts, headers: RequestHeaders) -> Request:
    document = parse_json(parts.document)
    if headers.is_tagged:
        document.pop("id", None)
    if parts.raw and "type" not in document:
        document = {"type": "step", **document}
    return parse_request(document)


def _has_flag(flags: Parts, names: frozenset[str]) -> bool:
    return any(name.lower() in names and value == b"true" for name, value in flags.items())
