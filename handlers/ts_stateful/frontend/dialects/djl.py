"""DJL Serving's LMI containers: `requestType`, `inputs` and `parameters`, `generated_text`.

Owns that schema: https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html and its
stateful sessions. Token ids and log-probabilities, which it has in streams too, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ts_stateful.frontend.dialects.dialect import Letter, Translation, Unnamed, Whole
from ts_stateful.frontend.dialects.responder import Answer, Refusal, SpokenVoice, line_of
from ts_stateful.frontend.dialects.sampling import prompt_of
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Close, Open
from ts_stateful.protocol.strict_json import convert

__all__ = ["Djl"]

_FINISH_REASONS = {"stop": "eos_token"}
_WITH_ANSWER = ("details", "return_full_text")  # parameters of the answer rather than of the reply


class _Inference(Struct, frozen=True, forbid_unknown_fields=True):
    inputs: str
    parameters: dict[str, Any] | None = None
    stream: bool | None = None


class _Shape(Struct, frozen=True):
    """What an answer is to have beside the text: `details`, and the prompt `before` it."""

    details: bool = False
    before: str = ""


class _Session(SpokenVoice):
    """Says what became of a session."""

    def __init__(self, became: str) -> None:
        self._became = became

    def said(self, answer: Answer) -> bytes:
        return line_of({"result": f"Session {answer.session_id} {self._became}"})

    def refused(self, refusal: Refusal) -> Whole:
        return Whole(refusal.status, line_of({"error": refusal.sentence, "code": refusal.status}))


class _Generation(_Session):
    """Says a reply, in a stream as JSON lines of which the last has everything."""

    stream_type = "application/jsonlines"

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        self._streamed: list[str] = []

    def said(self, answer: Answer) -> bytes:
        return line_of(self._generated(answer.text, answer, with_details=self._shape.details))

    def part(self, text: str) -> bytes:
        self._streamed.append(text)
        return line_of({"token": {"text": text}}) + b"\n"

    def end(self, answer: Answer) -> bytes:
        text = "".join(self._streamed) + answer.text
        document = self._generated(text, answer, with_details=True)
        return line_of({"token": {"text": answer.text}, **document}) + b"\n"

    def broken(self, refusal: Refusal) -> bytes:
        document = {
            "token": {"id": -1, "text": "", "log_prob": -1, "special_token": True},
            "generated_text": "",
            "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
            "error": refusal.sentence,
            "code": refusal.status,
        }
        return line_of(document) + b"\n"

    def _generated(self, text: str, answer: Answer, *, with_details: bool) -> dict[str, Any]:
        document: dict[str, Any] = {"generated_text": self._shape.before + text}
        if with_details:
            reason = answer.finish_reason or ""
            document["details"] = {
                "finish_reason": _FINISH_REASONS.get(reason, reason),
                "generated_tokens": answer.usage.completion_tokens,
                "prompt_tokens": answer.usage.prompt_tokens,
                "cached_tokens": answer.usage.prompt_tokens_details.cached_tokens,
            }
        return document


class Djl:
    """The dialect of LMI containers. A reply without a session is one for itself, as it is there."""

    voice = _Session("refused")

    def speaks(self, letter: Letter) -> bool:
        """See `Dialect`."""
        document = letter.document
        inputs = document.get("inputs")
        if isinstance(inputs, list) and not any(isinstance(each, str) for each in inputs):
            inputs = None  # tensors of a step
        if "type" in document or "prompt" in document:
            return False
        return "requestType" in document or inputs is not None

    def read(self, letter: Letter) -> Translation:
        """See `Dialect`."""
        document = letter.document
        if "requestType" not in document:
            return self._inference(letter)
        requests: dict[str, Callable[[], Open | Close]] = {"NEW_SESSION": Open, "CLOSE": Close}
        kind = document["requestType"]
        if not isinstance(kind, str) or kind not in requests:
            raise InvalidRequest("requestType must be NEW_SESSION or CLOSE", field="requestType")
        if len(document) > 1:
            other = next(name for name in document if name != "requestType")
            raise InvalidRequest("a request with a requestType has nothing else", field=other[:64])
        became = "created" if kind == "NEW_SESSION" else "closed"
        return Translation(requests[kind](), _Session(became))

    def _inference(self, letter: Letter) -> Translation:
        asked: _Inference = convert(letter.document, _Inference)
        parameters = dict(asked.parameters or {})
        flags = {name: parameters.pop(name, None) or False for name in _WITH_ANSWER}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise InvalidRequest("expected `bool`", field=f"parameters.{name}")
        shape = _Shape(flags["details"], asked.inputs if flags["return_full_text"] else "")
        prompt = prompt_of(asked.inputs, parameters, field="parameters", stream=bool(asked.stream))
        named = letter.headers.names_session
        return Translation(prompt, _Generation(shape), Unnamed.OPENS if named else Unnamed.ALONE)
