"""The parts of replies, whatever pieces they come in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.chat_parsing.response_templates import load_response_template

from tests.support.tiny import chatml
from tests.support.tiny.small import SMALL
from ts_stateful.language.text.reply_parser import (
    ReplyParser,
    ReplyPiece,
    ReplyTemplate,
    find_template,
    parse_reply,
)
from ts_stateful.protocol.chat import Parsing, Tool, ToolCall

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "1"}}\n</tool_call>'
PIECES = [
    "<think>",
    "</think>",
    CALL,
    "<tool_call>",
    "</tool_call>",
    "hi",
    " ",
    "\n",
    "<",
    "{",
    "é",
]


@pytest.fixture(scope="module")
def template() -> ReplyTemplate:
    """The library's for Qwen3, whose tokenizers on the hub have none."""
    tokenizer = chatml()
    found = find_template(tokenizer, tokenizer, Qwen3ForCausalLM(Qwen3Config(**SMALL)))
    assert found is not None
    return found


def read(template: ReplyTemplate, text: str, **fields: Any) -> ReplyPiece:
    return parse_reply(template, Parsing(**{"tools": (Tool("f"),), **fields}), "r", text)


def test_reasoning_text_and_calls(template: ReplyTemplate) -> None:
    """In their order, without the blanks between them."""
    found = read(template, f"<think>\nI see.\n</think>\n\nLet me look.\n{CALL}\n{CALL}")
    assert (found.text, found.reasoning) == ("Let me look.", "I see.")
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("f", '{"a": "1"}')] * 2
    first, second = (call.id for call in found.tool_calls)
    assert first != second
    assert len(first) == 9


def test_a_call_without_tools_is_text(template: ReplyTemplate) -> None:
    """A client that offers none, or forbids calls, expects a message."""
    found = read(template, f"Let me look.\n{CALL}", tools=())
    assert found.tool_calls == ()
    assert found.text.startswith("Let me look.")
    assert '{"name": "f"' in found.text


def test_a_template_may_begin_the_reasoning(template: ReplyTemplate) -> None:
    """The mark is then in the prompt."""
    prefix = template.prefix_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert prefix == "<think>\n"
    found = read(template, "I see.</think>Yes.", prefix=prefix)
    assert (found.text, found.reasoning) == ("Yes.", "I see.")
    assert template.prefix_of("no mark of a reply <think>") == ""


def test_arguments_have_the_types_of_the_schema(template: ReplyTemplate) -> None:
    """Where the model wrote a string for a number."""
    tool = Tool("f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
    found = read(template, CALL, tools=(tool,))
    assert found.tool_calls[0].arguments == '{"a": 1}'


def test_half_a_character_in_arguments_stays_as_it_was_written(template: ReplyTemplate) -> None:
    """JSON can name it, but no answer and no store can hold it."""
    found = read(template, CALL.replace('"1"', '"é \\ud800"'))
    (call,) = found.tool_calls
    assert json.loads(call.arguments) == {"a": "é \ud800"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=ToolCall) == call


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        "<tool_call>{bad</tool_call> and more",
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call>[1, 2]</tool_call>",
        '<tool_call>{"name": "f", "argu',
    ],
)
def test_a_malformed_call_is_text(template: ReplyTemplate, text: str) -> None:
    """Nothing that the model wrote is lost, but the marks."""
    found = read(template, text)
    assert not found.tool_calls
    body = text.removeprefix("<tool_call>").partition("</tool_call>")[0]
    assert body in found.text


def test_special_tokens_are_not_shown(template: ReplyTemplate) -> None:
    """They are marks, or nothing: a model may write them anywhere."""
    text = "<think>a<|im_start|>b</think>c<|im_start|> d \n<|im_start|>e"
    found = read(template, text)
    assert (found.reasoning, found.text) == ("ab", "c d \ne")
    parser = ReplyParser(template, Parsing(), "r")
    parser.feed(text)
    assert [text[start:stop] for start, stop in parser.shown] == ["c", " d \n", "e"]


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.data())
def test_the_parts_do_not_depend_on_the_pieces(pieces: list[str], data: st.DataObject) -> None:
    """Text that comes in any pieces has the same parts as a whole; those that are shown are known by their places."""
    template = ReplyTemplate(load_response_template(QWEN3))
    parsing = Parsing(has_form=data.draw(st.booleans()))
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parser, found = ReplyParser(template, parsing, "r"), ReplyPiece()
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        settled, before = parser.settled, places(parser)
        found = found.joined(parser.feed(text[start:stop]))
        assert all(place >= settled for place in places(parser) - before)
    whole = parse_reply(template, parsing, "r", text)
    assert found.joined(parser.finish()) == whole
    assert "".join(text[start:stop] for start, stop in parser.shown) == whole.text
    if parsing.has_form and not text.startswith("<tool_call>"):
        assert whole == ReplyPiece(text)


def places(parser: ReplyParser) -> set[int]:
    """The places of all characters that are shown."""
    return {place for start, stop in parser.shown for place in range(start, stop)}


QWEN3: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    },
}
