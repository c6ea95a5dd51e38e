"""DJL Serving's LMI containers: `requestType`, `inputs` and `parameters`, `generated_text`.

The schema is https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html with its
stateful sessions. The token ids and log-probabilities of its streams are omitted.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ts_stateful.frontend.dialects.dialect import Translation, Unnamed, Whole
from ts_stateful.frontend.dialects.responder import EngineAnswer, EngineError, Translator, line_of
from ts_stateful.frontend.dialects.sampling import prompt_of
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Close, Open
from ts_stateful.protocol.strict_json import convert

__all__ = ["Djl"]

_FINISH_REASONS = {"stop": "eos_token"}
_WITH_ANSWER = ("details", "return_full_text")  # parameters of the answer, not of the generation


class _Inference(Struct, frozen=True, forbid_unknown_fields=True):
    inputs: str
    parameters: dict[str, Any] | None = None
    stream: bool | None = None


class _Shape(Struct, frozen=True):
    """The parts of an answer beside the text: `details`, and the prompt `before` it."""

    details: bool = False
    before: str = ""


class _DjlSession(Translator):
    """The answer to `requestType`: a session was created or closed."""

    def __init__(self, became: str) -> None:
        self._became = became

    def answer(self, answer: EngineAnswer) -> bytes:
        return line_of({"result": f"Session {answer.session_id} {self._became}"})

    def error(self, error: EngineError) -> Whole:
        return Whole(error.status, line_of({"error": error.sentence, "code": error.status}))


class _DjlGeneration(_DjlSession):
    """A reply; its stream is JSON lines, and the last one has all of it."""

    stream_type = "application/jsonlines"

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        self._streamed: list[str] = []

    def answer(self, answer: EngineAnswer) -> bytes:
        return line_of(self._generated(answer.text, answer, with_details=self._shape.details))

    def part(self, answer: EngineAnswer) -> bytes:
        self._streamed.append(answer.text)
        return line_of({"token": {"text": answer.text}}) + b"\n"

    def end(self, answer: EngineAnswer) -> bytes:
        text = "".join(self._streamed) + answer.text
        document = self._generated(text, answer, with_details=True)
        return line_of({"token": {"text": answer.text}, **document}) + b"\n"

    def late_error(self, error: EngineError) -> bytes:
        document = {
            "token": {"id": -1, "text": "", "log_prob": -1, "special_token": True},
            "generated_text": "",
            "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
            "error": error.sentence,
            "code": error.status,
        }
        return line_of(document) + b"\n"

    def _generated(self, text: str, answer: EngineAnswer, *, with_details: bool) -> dict[str, Any]:
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
    """The dialect of LMI containers. As there, a prompt without a session is independent."""

    responder = _DjlSession("refused")

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`."""
        document = body.document
        inputs = document.get("inputs")
        if isinstance(inputs, list) and not any(isinstance(each, str) for each in inputs):
            inputs = None  # tensors of a step
        if "type" in document or "prompt" in document:
            return False
        return "requestType" in document or inputs is not None

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        document = body.document
        if "requestType" not in document:
            return self._inference(body)
        requests: dict[str, type[Open | Close]] = {"NEW_SESSION": Open, "CLOSE": Close}
        kind = document["requestType"]
        if not isinstance(kind, str) or kind not in requests:
            raise InvalidRequest("requestType must be NEW_SESSION or CLOSE", field="requestType")
        if len(document) > 1:
            other = next(name for name in document if name != "requestType")
            raise InvalidRequest(
                "a request with a requestType takes no other field", field=other[:64]
            )
        became = "created" if kind == "NEW_SESSION" else "closed"
        return Translation(requests[kind](), _DjlSession(became))

    def _inference(self, body: RequestBody) -> Translation:
        asked: _Inference = convert(body.document, _Inference)
        parameters = dict(asked.parameters or {})
        flags = {name: parameters.pop(name, None) or False for name in _WITH_ANSWER}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise InvalidRequest("expected `bool`", field=f"parameters.{name}")
        shape = _Shape(flags["details"], asked.inputs if flags["return_full_text"] else "")
        prompt = prompt_of(asked.inputs, parameters, field="parameters", stream=bool(asked.stream))
        named = body.headers.names_session
        return Translation(
            prompt, _DjlGeneration(shape), Unnamed.OPENS if named else Unnamed.EPHEMERAL
        )
