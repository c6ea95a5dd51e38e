"""Answers to OpenAI's clients (https://platform.openai.com/docs/api-reference/chat): completions, chunks, errors."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from ts_stateful.frontend.dialects.dialect import SSE, Whole
from ts_stateful.frontend.dialects.openai_request import Completion
from ts_stateful.frontend.dialects.responder import EngineAnswer, EngineError, Translator, line_of
from ts_stateful.protocol.answers import Usage

__all__ = ["CompletionResponder", "OpenAiResponder"]

_DONE = b"data: [DONE]\n\n"
_IMAGE_FIELD = re.compile(r"images\[(\d+)\]\.\w+")
_FINISH_REASONS = {"length": "length"}  # any other reason is a `stop`
# Our names of fields to theirs, where they differ.
_PARAMS = {"prompt": "messages", "system": "messages", "images": "messages"}
_CODES = {"context_too_long": (400, "context_length_exceeded")}
_TYPES = {404: "invalid_request_error", 429: "rate_limit_error"}


class OpenAiResponder(Translator):
    """Errors in OpenAI's form."""

    stream_type = SSE

    def answer(self, answer: EngineAnswer) -> bytes:
        return line_of({})

    def error(self, error: EngineError) -> Whole:
        status, code = _CODES.get(error.code, (error.status, error.code))
        other = "invalid_request_error" if status < 500 else "server_error"
        document = {
            "message": error.message,
            "type": _TYPES.get(status, other),
            "param": self._param(error.field),
            "code": code,
        }
        return Whole(status, line_of({"error": document}))

    def late_error(self, error: EngineError) -> bytes:
        return b"data: " + self.error(error).body + b"\n\n"

    def _param(self, field: str | None) -> str | None:
        return _PARAMS.get(field or "", field)


class CompletionResponder(OpenAiResponder):
    """The answer to one chat completion."""

    def __init__(self, asked: Completion) -> None:
        self._asked = asked
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._begun = False

    def answer(self, answer: EngineAnswer) -> bytes:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(answer),
        }
        document = self._document("chat.completion", [choice])
        return line_of({**document, "usage": _usage(answer.usage)})

    def part(self, text: str) -> bytes:
        delta = {"content": text} if self._begun else {"role": "assistant", "content": text}
        self._begun = True
        return self._chunk(delta, None)

    def end(self, answer: EngineAnswer) -> bytes:
        chunks = [] if self._begun and not answer.text else [self.part(answer.text)]
        chunks.append(self._chunk({}, _finish_reason(answer)))
        if self._asked.include_usage:
            document = self._document("chat.completion.chunk", [])
            chunks.append(_event({**document, "usage": _usage(answer.usage)}))
        return b"".join([*chunks, _DONE])

    def _chunk(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        document = self._document("chat.completion.chunk", [choice])
        return _event({**document, "usage": None} if self._asked.include_usage else document)

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._asked.model,
            "choices": choices,
        }

    def _param(self, field: str | None) -> str | None:
        image = _IMAGE_FIELD.fullmatch(field or "")
        if image is not None and int(image[1]) < len(self._asked.image_fields):
            return self._asked.image_fields[int(image[1])]
        return super()._param(field)


def _finish_reason(answer: EngineAnswer) -> str:
    return _FINISH_REASONS.get(answer.finish_reason or "", "stop")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        },
    }


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + line_of(document) + b"\n\n"
