"""The sticky-session sample with SGLang behind Sanic: `requestType`, `extSessionID`, `generation`.

Owns its schema: a session is opened under an id of the client's, and a reply is what SGLang's `generate` returns.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ts_stateful.frontend.dialects.dialect import Letter, Translation, Unnamed, Whole
from ts_stateful.frontend.dialects.responder import Answer, Refusal, SpokenVoice, line_of
from ts_stateful.frontend.dialects.sampling import prompt_of
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Close, Open
from ts_stateful.protocol.strict_json import convert

__all__ = ["Sglang"]

_MARKS = ("extSessionID", "sampling_params")
_TYPES = ("SESSION", "CLOSE_SESSION")


class _Request(Struct, frozen=True, forbid_unknown_fields=True):
    requestType: Literal["NEW_SESSION", "SESSION", "CLOSE_SESSION"] = "SESSION"
    extSessionID: str | None = None
    inputs: str | None = None
    parameters: dict[str, Any] | None = None
    sampling_params: dict[str, Any] | None = None


class _Sessions(SpokenVoice):
    """Says nothing of a session but its headers."""

    def said(self, answer: Answer) -> bytes:
        return b"{}"

    def refused(self, refusal: Refusal) -> Whole:
        return Whole(refusal.status, line_of({"error": refusal.sentence}))


class _Generation(_Sessions):
    def said(self, answer: Answer) -> bytes:
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

    voice = _Sessions()

    def speaks(self, letter: Letter) -> bool:
        """See `Dialect`."""
        document = letter.document
        if "type" in document or "prompt" in document:
            return False
        return any(mark in document for mark in _MARKS) or document.get("requestType") in _TYPES

    def read(self, letter: Letter) -> Translation:
        """See `Dialect`."""
        asked: _Request = convert(letter.document, _Request)
        session_id = asked.extSessionID
        if asked.requestType == "NEW_SESSION":
            return Translation(Open(session_id=session_id), self.voice)
        if asked.requestType == "CLOSE_SESSION":
            return Translation(Close(session_id=session_id), self.voice)
        if not asked.inputs:
            raise InvalidRequest("inputs is required")
        # The sample's client sends the one, its server reads the other.
        field = "parameters" if asked.sampling_params is None else "sampling_params"
        parameters = {**(asked.parameters or {}), **(asked.sampling_params or {})}
        prompt = prompt_of(asked.inputs, parameters, field=field, session_id=session_id)
        named = letter.headers.names_session
        return Translation(prompt, _Generation(), Unnamed.OPENS if named else Unnamed.ALONE)
