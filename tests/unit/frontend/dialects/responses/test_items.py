"""Input items: the messages that they become, and the lists that show them again."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.frontend.dialects.openai_fields import FieldFilter
from ts_stateful.frontend.dialects.responses.items import Items, read_items
from ts_stateful.protocol.chat import Said, ToolCall
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Image

URL = "https://example.com/cat.png"
CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "c1",
    "name": "count",
    "arguments": "{}",
}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "3"}
THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "I count."}],
}


def read(*items: dict[str, Any]) -> Items:
    return read_items(list(items), FieldFilter(strict=False))


def user(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def test_a_text_is_a_message_of_the_user() -> None:
    """And is listed as one."""
    items = read_items("hi", FieldFilter(strict=False))
    assert items.messages == (Said("user", ("hi",)),)
    (document,) = items.documents
    assert document["content"] == [{"type": "input_text", "text": "hi"}]


def test_parts_keep_their_order() -> None:
    """With the path of each image, for errors about it. Inline ones are not listed with their bytes."""
    inline = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    linked = {"type": "input_image", "image_url": URL, "detail": "high"}
    text = {"type": "input_text", "text": "What is it?"}
    items = read({"role": "developer", "content": "Be brief."}, user(inline, text, linked))
    assert items.messages == (
        Said("system", ("Be brief.",)),
        Said("user", (None, "What is it?", None)),
    )
    assert items.images == (Image(url="data:image/png;base64,AAAA"), Image(url=URL))
    assert items.image_fields == {
        "images[0]": "input[1].content[0].image_url",
        "images[1]": "input[1].content[2].image_url",
    }
    listed = items.documents[1]["content"]
    assert [part.get("image_url", "") for part in listed] == [None, "", URL]
    assert [part.get("detail") for part in listed] == ["auto", None, "high"]


def test_the_items_of_one_reply_are_one_message() -> None:
    """As the model wrote it: reasoning, text and calls. Results follow, and the next reply is another message."""
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
    other = {**CALL, "call_id": "c2"}
    items = read(THOUGHT, said, CALL, other, RESULT, THOUGHT, CALL, said)
    calls = tuple(ToolCall(name, "count", "{}") for name in ("c1", "c2"))
    assert items.messages == (
        Said("assistant", ("Let me see.",), calls, reasoning="I count."),
        Said("tool", ("3",), tool_call_id="c1"),
        Said("assistant", ("",), calls[:1], reasoning="I count."),
        Said("assistant", ("Let me see.",)),
    )
    assert len(items.documents) == 8


def test_reasoning_begins_the_reply_that_follows_it() -> None:
    """Also after the text of another reply, as when all items of two responses are sent."""
    said = [{"role": "assistant", "content": text} for text in ("One.", "Two.")]
    assert read(said[0], THOUGHT, said[1], CALL, THOUGHT, {**CALL, "call_id": "c2"}).messages == (
        Said("assistant", ("One.",)),
        Said("assistant", ("Two.",), (ToolCall("c1", "count", "{}"),), reasoning="I count."),
        Said("assistant", ("",), (ToolCall("c2", "count", "{}"),), reasoning="I count."),
    )
    other = {**CALL, "call_id": "c2"}
    (message,) = read(CALL, THOUGHT, other).messages
    assert [call.id for call in message.tool_calls] == ["c1", "c2"]


def test_a_result_may_have_parts() -> None:
    """Texts, but no images."""
    text = {"type": "input_text", "text": "3"}
    (message,) = read({**RESULT, "output": [text, text]}).messages
    assert message == Said("tool", ("3", "3"), tool_call_id="c1")
    with pytest.raises(InvalidRequest) as refused:
        read({**RESULT, "output": [{"type": "input_image", "image_url": URL}]})
    assert refused.value.field == "input[0].output[0]"


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [1]}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        (user({"type": "input_image", "file_id": "f"}), "input[0].content[0].file_id"),
        ({**CALL, "arguments": {}}, "input[0].arguments"),
        ({**RESULT, "call_id": None}, "input[0].call_id"),
        ({"type": "reasoning", "content": "x", "role": 3}, None),
        ({"type": ["message"]}, "input[0].type"),
        ({"type": "item_reference", "id": "x"}, "input[0]"),
    ],
)
def test_a_wrong_item_is_named(item: dict[str, Any], field: str | None) -> None:
    """By its path; reasoning as a text is taken."""
    if field is None:
        assert read(item).messages[0].reasoning == "x"
        return
    with pytest.raises(InvalidRequest) as refused:
        read(item)
    assert refused.value.field == field


def test_an_inline_image_comes_back_without_its_url() -> None:
    """As a program sends it that lists the items of a conversation; the error has the ways to show it again."""
    listed = {"type": "input_image", "image_url": None, "detail": "auto"}
    with pytest.raises(InvalidRequest, match="`previous_response_id` keeps what it shows"):
        read({"role": "user", "content": [listed]})
