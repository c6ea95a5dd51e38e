"""Answers to OpenAI's clients (https://platform.openai.com/docs/api-reference/chat): completions, chunks, errors."""

from __future__ import annotations

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert, structs

from ts_stateful.frontend.dialects.dialect import SSE, Whole
from ts_stateful.frontend.dialects.openai_request import Completion
from ts_stateful.frontend.dialects.responder import EngineAnswer, EngineError, Translator, line_of
from ts_stateful.protocol.answers import Logprob, ReplyDetails, TopLogprob
from ts_stateful.protocol.chat import ToolCall
from ts_stateful.protocol.errors import StatefulError

__all__ = ["ChatResponder", "OpenAiResponder", "TextResponder", "image_field", "scored"]

_DONE = b"data: [DONE]\n\n"
_IMAGE_FIELD = re.compile(r"((?:images|audio)\[\d+\])\.\w+")
# Our names of fields to those of a chat, where they differ.
_PARAMS = {"prompt": "messages", "system": "messages", "images": "messages", "audio": "messages"}
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
        param = self._param(error.field)
        document = {
            # Its clients show the message alone.
            "message": structs.replace(error, field=param).sentence,
            "type": _TYPES.get(status, other),
            "param": param,
            "code": code,
        }
        return Whole(status, line_of({"error": document}))

    def refusal(self, error: StatefulError) -> bytes:
        """Write an error that a request meets before an engine."""
        return self.error(convert(error.to_body()["error"], EngineError)).body

    def late_error(self, error: EngineError) -> bytes:
        return b"data: " + self.error(error).body + b"\n\n"

    def _param(self, field: str | None) -> str | None:
        """Return the client's name of a field."""
        return "model" if field == "adapter" else field


class _CompletionResponder(OpenAiResponder, ABC):
    """The answer to one completion, whose pieces are called `chunk`."""

    def __init__(self, asked: Completion, prefix: str, kind: str, chunk: str) -> None:
        self._asked = asked
        self._id = f"{prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._kind, self._chunk = kind, chunk
        self._num_calls: dict[int, int] = {}  # in the pieces so far, of each choice that has begun
        self._answers: list[EngineAnswer] = []  # of choices that have ended

    def _param(self, field: str | None) -> str | None:
        return self._asked.format_field if field == "response_format" else super()._param(field)

    def answer(self, answer: EngineAnswer) -> bytes:
        self.add_choice(answer)
        choices = [
            self._choice(self._whole(one), one, self._finish_reason(one))
            for one in sorted(self._answers, key=lambda one: one.choice)
        ]
        return line_of({**self._document(self._kind, choices), "usage": self._usage()})

    def add_choice(self, answer: EngineAnswer) -> None:
        self._num_calls[answer.choice] = len(answer.tool_calls)
        self._answers.append(answer)

    def part(self, answer: EngineAnswer) -> bytes:
        piece = self._piece(answer, is_first=answer.choice not in self._num_calls)
        num_calls = self._num_calls.get(answer.choice, 0)
        self._num_calls[answer.choice] = num_calls + len(answer.tool_calls)
        return self._event(self._choice(piece, answer, None))

    def end_choice(self, answer: EngineAnswer) -> bytes:
        has_rest = bool(answer.text or answer.reasoning or answer.tool_calls or answer.logprobs)
        is_first = answer.choice not in self._num_calls
        events = [self.part(answer)] if has_rest or is_first else []
        nothing = EngineAnswer(choice=answer.choice)
        last = self._choice(self._piece(None), nothing, self._finish_reason(answer))
        self._answers.append(answer)
        return b"".join([*events, self._event(last)])

    def end(self, answer: EngineAnswer) -> bytes:
        events = [self.end_choice(answer)]
        if self._asked.include_usage:
            events.append(_event({**self._document(self._chunk, []), "usage": self._usage()}))
        return b"".join([*events, _DONE])

    @abstractmethod
    def _whole(self, answer: EngineAnswer) -> dict[str, Any]:
        """Return the fields of the only choice of an answer."""

    @abstractmethod
    def _piece(self, answer: EngineAnswer | None, *, is_first: bool = False) -> dict[str, Any]:
        """Return those of a piece; the last one has no answer."""

    @abstractmethod
    def _logprobs(self, tokens: Sequence[Logprob]) -> dict[str, Any]:
        """Return the log-probabilities of tokens."""

    def _choice(
        self, fields: dict[str, Any], answer: EngineAnswer, finish_reason: str | None
    ) -> dict[str, Any]:
        logprobs = None if answer.logprobs is None else self._logprobs(answer.logprobs)
        return {
            "index": answer.choice,
            **fields,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }

    def _finish_reason(self, answer: EngineAnswer) -> str:
        if answer.finish_reason == "length":
            return "length"
        called = self._num_calls.get(answer.choice) and not self._asked.names_tool
        return "tool_calls" if called else "stop"

    def _event(self, choice: dict[str, Any]) -> bytes:
        document = self._document(self._chunk, [choice])
        return _event({**document, "usage": None} if self._asked.include_usage else document)

    def _usage(self) -> dict[str, Any]:
        """Return the counts of all choices; a prompt was computed for the first one of its own."""
        per_prompt = self._asked.choices // self._asked.prompts
        firsts = [one.usage for one in self._answers if one.choice % per_prompt == 0]
        num_prompt = sum(usage.prompt_tokens for usage in firsts)
        num_cached = sum(usage.prompt_tokens_details.cached_tokens for usage in firsts)
        num_completion = sum(one.usage.completion_tokens for one in self._answers)
        details = [one.usage.completion_tokens_details or ReplyDetails() for one in self._answers]
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": num_cached},
            "completion_tokens_details": {
                "reasoning_tokens": sum(one.reasoning_tokens for one in details)
            },
        }

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._asked.model,
            "choices": choices,
        }


class TextResponder(_CompletionResponder):
    """The continuation of a text."""

    def __init__(self, asked: Completion) -> None:
        super().__init__(asked, "cmpl", "text_completion", "text_completion")

    def _whole(self, answer: EngineAnswer) -> dict[str, Any]:
        return {"text": answer.text}

    def _piece(self, answer: EngineAnswer | None, *, is_first: bool = False) -> dict[str, Any]:
        return {"text": answer.text if answer else ""}

    def _logprobs(self, tokens: Sequence[Logprob]) -> dict[str, Any]:
        return {
            "tokens": list(map(_named, tokens)),
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [
                {_named(top): top.logprob for top in (*one.top_logprobs, one)} for one in tokens
            ],
            "text_offset": [one.text_offset for one in tokens],
        }


class ChatResponder(_CompletionResponder):
    """A reply to messages."""

    def __init__(self, asked: Completion) -> None:
        super().__init__(asked, "chatcmpl", "chat.completion", "chat.completion.chunk")

    def _whole(self, answer: EngineAnswer) -> dict[str, Any]:
        calls = [_call(call) for call in answer.tool_calls]
        content = None if calls and not answer.text else answer.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _piece(self, answer: EngineAnswer | None, *, is_first: bool = False) -> dict[str, Any]:
        if answer is None:
            return {"delta": {}}
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if answer.text or not (answer.reasoning or answer.tool_calls):
            delta["content"] = answer.text
        if answer.reasoning:
            delta["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            num_calls = self._num_calls.get(answer.choice, 0)
            numbered = enumerate(answer.tool_calls, start=num_calls)
            delta["tool_calls"] = [{"index": index, **_call(call)} for index, call in numbered]
        return {"delta": delta}

    def _logprobs(self, tokens: Sequence[Logprob]) -> dict[str, Any]:
        return {"content": list(map(scored, tokens)), "refusal": None}

    def _param(self, field: str | None) -> str | None:
        image = image_field(field, self._asked.image_fields)
        return image or super()._param(_PARAMS.get(field or "", field))


def image_field(field: str | None, image_fields: Mapping[str, str]) -> str | None:
    """Return the client's path of an image or clip that an error is about; None if it is about something else."""
    image = _IMAGE_FIELD.fullmatch(field or "")
    return image_fields.get(image[1]) if image else None


def scored(token: Logprob) -> dict[str, Any]:
    """Return a token with its log-probability, and those of its alternatives."""
    return {**_alone(token), "top_logprobs": list(map(_alone, token.top_logprobs))}


def _alone(token: TopLogprob) -> dict[str, Any]:
    return {"token": token.token, "bytes": list(token.bytes), "logprob": token.logprob}


def _named(token: TopLogprob) -> str:
    """Return the text of a token, or the bytes of one that has no whole characters."""
    if "\ufffd" not in token.token:
        return token.token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + line_of(document) + b"\n\n"
