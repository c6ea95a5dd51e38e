"""The sticky-session sample with SGLang and Sanic: `requestType`, `extSessionID`, `generation`.

The client chooses the id of its session. A reply is the result of SGLang's `generate`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ts_stateful.frontend.dialects.dialect import Translation, Unnamed, Whole
from ts_stateful.frontend.dialects.responder import EngineAnswer, EngineError, Translator, line_of
from ts_stateful.frontend.dialects.sampling import prompt_of
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Close, Open
from ts_stateful.protocol.strict_json import convert

__all__ = ["Sglang"]

_MARKS = ("extSessionID", "sampling_params")
_TYPES = ("SESSION", "CLOSE_SESSION")


class _SglangRequest(Struct, frozen=True, forbid_unknown_fields=True):
    requestType: Literal["NEW_SESSION", "SESSION", "CLOSE_SESSION"] = "SESSION"
    extSessionID: str | None = None
    inputs: str | None = None
    parameters: dict[str, Any] | None = None
    sampling_params: dict[str, Any] | None = None


class _SglangSession(Translator):
    """An empty answer: the headers name the session."""

    def answer(self, answer: EngineAnswer) -> bytes:
        return b"{}"

    def error(self, error: EngineError) -> Whole:
        return Whole(error.status, line_of({"error": error.sentence}))


class _SglangGeneration(_SglangSession):
    def answer(self, answer: EngineAnswer) -> bytes:
        usage = answer.usage
        meta = {
            "finish_reason": {"type": answer.finish_reason},
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        }
        return line_of({"generation": {"text": answer.text, "meta_info": meta}})


class Sglang:
    """The dialect of that sample. It has no streams."""

    responder = _SglangSession()

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`."""
        document = body.document
        if "type" in document or "prompt" in document:
            return False
        return any(mark in document for mark in _MARKS) or document.get("requestType") in _TYPES

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        asked: _SglangRequest = convert(body.document, _SglangRequest)
        session_id = asked.extSessionID
        if asked.requestType == "NEW_SESSION":
            return Translation(Open(session_id=session_id), self.responder)
        if asked.requestType == "CLOSE_SESSION":
            return Translation(Close(session_id=session_id), self.responder)
        if not asked.inputs:
            raise InvalidRequest("inputs is required")
        # The sample's client sends `sampling_params`, its server reads `parameters`.
        field = "parameters" if asked.sampling_params is None else "sampling_params"
        parameters = {**(asked.parameters or {}), **(asked.sampling_params or {})}
        prompt = prompt_of(asked.inputs, parameters, field=field, session_id=session_id)
        named = body.headers.names_session
        return Translation(
            prompt, _SglangGeneration(), Unnamed.OPENS if named else Unnamed.EPHEMERAL
        )
