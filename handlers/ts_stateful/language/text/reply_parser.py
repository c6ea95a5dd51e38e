"""The parts of a reply: what is for the user, the reasoning before it, and calls of tools."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.cli.serving.utils import get_response_template
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    ResponseTemplateField,
    load_response_template,
)

from ts_stateful.protocol.chat import Parsing, Tool, ToolCall

__all__ = [
    "ReplyParser",
    "ReplyPiece",
    "ReplyTemplate",
    "find_template",
    "functions_of",
    "parse_reply",
]

_REASONING = ("reasoning_content", "thinking")  # templates on the hub have either
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_WHOLE = {"type": "function", "function": "{content}"}  # the JSON of a call has name and arguments
_BLANKS = re.compile(r"(\\s[*+?])+")
_ID_CHARS = 9  # some templates take ids of no other length


class ReplyPiece(NamedTuple):
    """A part of a reply: text for the user, reasoning, and complete calls."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def joined(self, other: ReplyPiece) -> ReplyPiece:
        """Return this piece and the next one."""
        return ReplyPiece(
            self.text + other.text,
            self.reasoning + other.reasoning,
            self.tool_calls + other.tool_calls,
        )


class ReplyTemplate:
    """The form of one model's replies: the marks between their parts. `hidden` tokens are marks, or nothing.

    `call_marks` are those around the JSON of a call; None if the model writes calls in another form.
    """

    def __init__(self, response: ResponseTemplate, hidden: Iterable[str] = ()) -> None:
        self.response = response
        self.hidden = re.compile(
            "|".join(map(re.escape, sorted(hidden, key=len, reverse=True))) or "(?!)"
        )
        for field in response.fields.values():
            # Else a call that is no JSON would end the parser with an error.
            if field.content == "json":
                field.content_args = {**field.content_args, "allow_non_json": True}
        calls = response.fields.get("tool_calls")
        self.call_marks = None if calls is None else _marks(calls)

    @property
    def has_calls(self) -> bool:
        """True if replies can have calls of tools."""
        return "tool_calls" in self.response.fields

    @property
    def has_reasoning(self) -> bool:
        """True if replies can have reasoning."""
        return any(name in self.response.fields for name in _REASONING)

    def prefix_of(self, rendered: str) -> str:
        """Return the beginning of the reply that the chat template wrote, such as `<think>`."""
        found = self.response.start_anchor_re.search(rendered)
        return "" if found is None else self.response.truncate_past_last_anchor(rendered)


def find_template(
    owner: Any, tokenizer: PreTrainedTokenizerFast, network: PreTrainedModel
) -> ReplyTemplate | None:
    """Return the template by which replies of a model are parsed: its tokenizer's, or the library's for its family.

    Raises:
        ValueError: it is malformed.
    """
    found = get_response_template(owner, network)
    added = tokenizer.added_tokens_decoder.values()
    hidden = [token.content for token in added if token.special]
    if found is None:
        return None
    try:
        return ReplyTemplate(load_response_template(found), hidden)
    except (TypeError, KeyError, AttributeError, re.error) as error:
        raise ValueError(str(error)) from None


def functions_of(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return tools in the form of chat templates."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


class _PlacedParser(ResponseParser):  # type: ignore[misc]  # transformers is not typed
    """The library's parser, which adds the place of its text to an event: from the end of the text so far, so below 0."""

    def _accumulate(self, events: list[dict[str, Any]], text: str) -> None:
        super()._accumulate(events, text)
        if events:
            events[-1]["start"] = self._pos - len(self._buffer)


class ReplyParser:
    """The parser of one reply, which takes its text in any pieces; control tokens are part of the text.

    A call that is malformed, or of a reply that may call nothing, is text. Blanks at the ends of a part are left out. `origin`
    makes the ids of calls: they are the same if the reply is parsed again.

    A reply with a form is text as it is, unless it begins with a call. `shown` has the ranges of the reply's characters that
    are text so far, each with its first place and the one after its last. What will become text is at `settled` or after it.
    """

    def __init__(self, template: ReplyTemplate, parsing: Parsing, origin: str) -> None:
        self._hidden = template.hidden
        # The mark with which a reply with a form begins if it is calls, until that is known.
        self._mark = template.call_marks[0] if parsing.has_form and template.call_marks else ""
        self._beginning = ""
        self._parser: _PlacedParser | None = _PlacedParser(
            template.response, prefix=parsing.prefix, tools=functions_of(parsing.tools)
        )
        self.shown: list[tuple[int, int]] = []
        self.settled = 0
        self._num_fed = 0
        self._origin = origin
        self._may_call = bool(parsing.tools)
        self._num_calls = 0
        self._call = ""  # the text of a call so far
        self._call_start = 0
        self._blanks: list[tuple[int, str]] = []  # at the end of a part, until it goes on
        self._is_fresh = True  # the part has no text yet
        self._in_reasoning = False
        self._read(self._parser.initial_events)

    def feed(self, text: str) -> ReplyPiece:
        """Return what the next text adds."""
        return self._advance(text, is_last=False)

    def reasons(self, text: str) -> bool:
        """Take the next text; return True if it belongs to reasoning or its marks."""
        was_in_reasoning = self._in_reasoning
        self.feed(text)
        return was_in_reasoning or self._in_reasoning

    def finish(self) -> ReplyPiece:
        """Return what the end of the reply adds."""
        return self._advance("", is_last=True)

    def _advance(self, text: str, *, is_last: bool) -> ReplyPiece:
        self._num_fed += len(text)
        if self._mark:
            text = self._beginning = self._beginning + text
            if len(text) < len(self._mark) and self._mark.startswith(text) and not is_last:
                return ReplyPiece()
            if not text.startswith(self._mark):
                self._parser = None
            self._mark = ""
        start = self._num_fed - len(text)
        if self._parser is None:
            return self._show(start, text)
        held = self._call
        try:
            events = self._parser.finalize()[1] if is_last else self._parser.feed(text)
        except ValueError:  # a call that the template cannot take
            self._parser = None
            return self._show(self._call_start, held).joined(self._show(start, text))
        return self._read(events)

    def _read(self, events: Sequence[dict[str, Any]]) -> ReplyPiece:
        piece = ReplyPiece()
        for event in events:
            kind, name, text = event["type"], event["field"], event.get("text", "")
            start = self._num_fed + event.get("start", 0)
            if kind == "region_open":
                self._is_fresh, self._blanks, self._call = True, [], ""
                self._in_reasoning = name in _REASONING
            elif kind == "region_chunk" and name == "content":
                for place, shown in self._trimmed(start, text):
                    piece = piece.joined(self._show(place, shown))
            elif kind == "region_chunk" and name in _REASONING:
                thought = "".join(shown for _, shown in self._trimmed(start, text))
                piece = piece.joined(ReplyPiece(reasoning=thought))
                self.settled = start + len(text)
            elif kind == "region_chunk":
                self._call_start = start - len(self._call)
                self._call += text
            elif kind == "region_close":
                self._in_reasoning = False
                if name == "tool_calls":
                    piece = piece.joined(self._called(event["value"]))
        return piece

    def _show(self, start: int, text: str) -> ReplyPiece:
        """Return text that begins at this place of the reply, and keep its range."""
        if text:
            self.settled = start + len(text)
            if self.shown and self.shown[-1][1] == start:
                start = self.shown.pop()[0]
            self.shown.append((start, self.settled))
        return ReplyPiece(text)

    def _trimmed(self, start: int, chunk: str) -> Iterator[tuple[int, str]]:
        """Yield what is shown of a region's text that begins at this place of the reply, with its places."""
        at = 0
        for hidden in (*self._hidden.finditer(chunk), None):
            text, place = chunk[at : hidden and hidden.start()], start + at
            at = hidden.end() if hidden else at
            shown = text.rstrip()
            if shown:
                first = len(text) - len(text.lstrip()) if self._is_fresh else 0
                yield from self._blanks
                yield place + first, shown[first:]
                self._is_fresh, self._blanks = False, []
            if not self._is_fresh:
                self._blanks.append((place + len(shown), text[len(shown) :]))

    def _called(self, value: Any) -> ReplyPiece:
        calls = []
        if not self._may_call:
            return self._show(self._call_start, self._call)
        for one in value if isinstance(value, list) else [value]:
            function = one.get("function") if isinstance(one, dict) else None
            if not isinstance(function, dict) or not _is_whole(function.get("name")):
                return self._show(self._call_start, self._call)
            arguments = function.get("arguments", {})
            if not isinstance(arguments, str):
                written = json.dumps(arguments, ensure_ascii=False)
                arguments = written if _is_whole(written) else json.dumps(arguments)
            if not _is_whole(arguments):
                return self._show(self._call_start, self._call)
            calls.append(ToolCall(self._next_id(), function["name"], arguments))
        return ReplyPiece(tool_calls=tuple(calls))

    def _next_id(self) -> str:
        self._num_calls += 1
        name = f"{self._origin} {self._num_calls}"
        return hashlib.sha256(name.encode()).hexdigest()[:_ID_CHARS]


def _marks(field: ResponseTemplateField) -> tuple[str, str] | None:
    if field.content != "json" or field.transform != _WHOLE or not field.close_literals:
        return None
    begin = field.open_literals[0] if field.open_literals else _literal(field.open_re.pattern)
    return None if begin is None else (begin, field.close_literals[0])


def _literal(pattern: str) -> str | None:
    """Return the text that a pattern stands for, blanks at its beginning left out; None if it is no single text."""
    text = pattern[found.end() :] if (found := _BLANKS.match(pattern)) else pattern
    return None if re.search(r"[\\^$.|?*+()\[\]{}]", text) else text


def _is_whole(text: object) -> bool:
    """Return True for a text of whole characters. JSON may name half a surrogate pair, which no answer can hold."""
    return isinstance(text, str) and _HALF_CHARACTER.search(text) is None


def parse_reply(template: ReplyTemplate, parsing: Parsing, origin: str, text: str) -> ReplyPiece:
    """Return the parts of a whole reply."""
    parser = ReplyParser(template, parsing, origin)
    return parser.feed(text).joined(parser.finish())
