"""Paths, fields and ids of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import Exchange, ask
from ts_stateful.frontend.dialects.responses.ids import (
    ResponseId,
    conversation_id,
    session_of_conversation,
)
from ts_stateful.frontend.dialects.responses.note import decode_note
from ts_stateful.protocol.chat import Respond, Tool
from ts_stateful.protocol.errors import ContextTooLong, SessionNotFound, TurnGap

USER = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {"type": "function", "name": "count", "parameters": {"type": "object"}}


def create(**fields: Any) -> Exchange:
    return ask({"model": "chat", "input": "hi", **fields}, headers={"url_path": "v1/responses"})


def made(**fields: Any) -> Respond:
    request: Respond = create(**fields).command
    return request


def test_ids_are_read_back() -> None:
    """Session ids with every character that they may have; others are no ids."""
    for session_id in ("a", "a_b-c.d", "0" * 32, "resp_1_2", "conv_x"):
        assert ResponseId.parse(str(ResponseId(session_id, 12))) == (session_id, 12)
        assert session_of_conversation(conversation_id(session_id)) == session_id
    for text in (
        "",
        "resp_",
        "resp_a",
        "resp_a_0",
        "resp_a_x",
        "resp__1",
        "resp_../x_1",
        "msg_a_1",
    ):
        assert ResponseId.parse(text) is None
    for text in ("", "conv_", "conv_a/b", "a"):
        assert session_of_conversation(text) is None


def test_a_new_response_opens_a_session() -> None:
    """One that follows another names that one's, and a session for a branch."""
    first = create()
    assert first.submit.creates_session
    assert (first.command.after, first.command.new_session_id) == (0, None)
    second = create(previous_response_id="resp_s_4")
    assert not second.submit.creates_session
    assert (second.command.session_id, second.command.after) == ("s", 4)
    assert second.command.new_session_id
    third = create(conversation={"id": "conv_s"})
    assert (third.command.session_id, third.command.after) == ("s", None)


def test_a_response_that_is_not_stored_has_a_session_of_its_own() -> None:
    """It ends with the answer."""
    assert create(store=False).submit.ephemeral
    assert create(store=False, previous_response_id="resp_s_4").submit.ephemeral
    assert not create().submit.ephemeral


def test_tokens_are_counted_without_a_response() -> None:
    """They are those of its prompt, which is computed."""
    asked = {
        "input": "hi",
        "previous_response_id": "resp_s_4",
        "tools": [TOOL],
        "truncation": "auto",
    }
    exchange = ask(asked, headers={"url_path": "v1/responses/input_tokens"})
    assert exchange.submit.ephemeral
    assert (exchange.command.max_new_tokens, exchange.command.after) == (1, 4)
    body = exchange.answered({"text": "x", "usage": {"prompt_tokens": 7}})
    assert body == {"object": "response.input_tokens", "input_tokens": 7}
    missing = exchange.fails(SessionNotFound("there is no such session"))[1]["error"]
    assert missing["code"] == "previous_response_not_found"


def test_conversations_are_not_compacted() -> None:
    """The error has what a client can do."""
    status, body = ask({"input": "hi"}, headers={"url_path": "v1/responses/compact"}).refusal
    assert (status, body["error"]["code"]) == (404, "unknown_url")
    assert "ask for a summary" in body["error"]["message"]


def test_a_response_in_the_background_is_answered_at_once() -> None:
    """Unless it is a stream."""
    assert create(background=True).submit.pull
    assert not create(background=True, stream=True).submit.pull
    assert create(background=True, stream=True).submit.background


def test_fields_become_settings() -> None:
    """Those of the reply, and the note with what the answer repeats."""
    request = made(
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0.5,
        top_logprobs=2,
        seed=-1,
        metadata={"a": "b"},
        tools=[TOOL],
        tool_choice={"type": "function", "name": "count"},
        parallel_tool_calls=False,
    )
    assert (request.instructions, request.max_new_tokens) == ("Be brief.", 7)
    assert (request.temperature, request.seed) == (0.5, 2**63 - 1)
    assert (request.logprobs, request.top_logprobs) == (True, 2)
    assert request.tools == (Tool("count", "", {"type": "object"}),)
    assert (request.calls, request.parallel) == ("count", False)
    fields = decode_note(request.note).fields
    assert fields["metadata"] == {"a": "b"}
    assert fields["tools"][0]["name"] == "count"
    assert fields["tool_choice"] == {"type": "function", "name": "count"}


def test_tools_may_be_allowed_by_name() -> None:
    """The others are not shown to the model."""
    other = {**TOOL, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "other"}]}
    request = made(tools=[TOOL, other], tool_choice=choice)
    assert [tool.name for tool in request.tools] == ["other"]
    assert request.calls == ""


def test_a_form_as_in_a_chat() -> None:
    """Without the nesting of a chat."""
    schema = {"type": "object"}
    asked = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    form = made(text=asked).response_format
    assert form is not None
    assert form.schema == schema  # type: ignore[union-attr]


def test_a_forced_call_has_no_form_of_a_text() -> None:
    """The response repeats the form all the same."""
    request = made(tools=[TOOL], tool_choice="required", text={"format": {"type": "json_object"}})
    assert (request.calls, request.response_format) == ("", None)
    assert decode_note(request.note).fields["text"] == {"format": {"type": "json_object"}}


WRONG_CHOICES: list[dict[str, Any]] = [
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "name": "count"}]},
    {"type": "allowed_tools", "mode": "auto", "tools": "count"},
    {"type": "allowed_tools", "tools": [{"type": "function", "name": "count"}]},
    {"type": "allowed_tools", "mode": "auto"},
]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {**TOOL, "name": "count"}}, "tool_choice"),
        *(({"tools": [TOOL], "tool_choice": choice}, "tool_choice") for choice in WRONG_CHOICES),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"input": 3}, "input"),
        ({"include": "x"}, "include"),
        ({"truncation": "some"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"input": None}, "input"),
        ({"n": 2, "background": True, "store": False}, "background"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str) -> None:
    """As the client names it."""
    status, document = create(**fields).refusal
    assert (status, document["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("item", "place"),
    [("msg_a_4_0", ("a", 4)), ("msg_a_3_0", ("a", 3)), ("msg_a_2_0", None), ("msg_b_3_0", None)],
)
def test_a_reference_is_to_no_response_before_the_named_one(
    item: str, place: tuple[str, int] | None
) -> None:
    """The turns between them would be forgotten."""
    exchange = create(
        input=[{"type": "item_reference", "id": item}, *USER], previous_response_id="resp_a_3"
    )
    if place is None:
        status, document = exchange.refusal
        assert (status, document["error"]["param"]) == (400, "input")
        return
    request: Respond = exchange.command
    assert (request.session_id, request.after, request.expects_after) == (*place, 3)


def test_what_has_no_effect_is_named() -> None:
    """Harmless fields of OpenAI's are taken."""
    exchange = create(user="me", prompt_cache_key="k", service_tier="auto", truncation="disabled")
    assert exchange.pending.ignored == ("user", "prompt_cache_key")


NAMELESS: list[tuple[dict[str, Any], str]] = [
    ({"input": [{"role": "user", "content": "x", "name": "Ann"}]}, "input[].name"),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "g"}, *USER]},
        "input[].encrypted_content",
    ),
    *(
        ({"input": [{"role": "user", "content": [part]}]}, f"input[].content[].{name}")
        for name, part in (
            ("cache_control", {"type": "input_text", "text": "x", "cache_control": {}}),
            ("detail", {"type": "input_image", "image_url": "https://x", "detail": "high"}),
        )
    ),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[].defer_loading"),
]


@pytest.mark.parametrize(("fields", "name"), NAMELESS)
def test_fields_of_items_and_tools_without_an_effect_are_named(
    fields: dict[str, Any], name: str
) -> None:
    """A strict server refuses them by their path."""
    assert create(**fields).pending.ignored == (name,)
    document = {"model": "chat", "input": "hi", **fields}
    status, body = ask(document, headers={"url_path": "v1/responses"}, strict=True).refusal
    assert (status, body["error"]["param"].replace("[0]", "[]")) == (400, name)


def test_what_is_not_in_effect_is_named_and_not_repeated() -> None:
    """Of `include` those that add nothing here."""
    included = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    exchange = create(truncation="auto", max_tool_calls=3, include=included)
    assert exchange.pending.ignored == (
        "max_tool_calls",
        "truncation",
        "include[reasoning.encrypted_content]",
    )
    fields = decode_note(exchange.command.note).fields
    assert (fields["truncation"], fields["max_tool_calls"]) == ("disabled", None)


def test_a_response_without_input_adds_nothing() -> None:
    """It answers what is there."""
    for before in ({"conversation": "conv_s"}, {"previous_response_id": "resp_s_4"}):
        request = made(**before, input=None)
        assert (request.messages, decode_note(request.note).items) == ((), ())


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"starting_after": "x"}, "starting_after"),
    ],
)
def test_a_malformed_parameter_is_named(parameters: dict[str, Any], field: str) -> None:
    """Of a response that is read again."""
    exchange = ask(parameters, headers={"url_path": "v1/responses/resp_s_1"})
    status, document = exchange.refusal
    assert (status, document["error"]["param"]) == (400, field)


def test_parameters_that_are_null_are_none() -> None:
    """As if they were not sent."""
    parameters = {"stream": None, "starting_after": None}
    assert not ask(parameters, headers={"url_path": "v1/responses/resp_s_1"}).command.stream


@pytest.mark.parametrize("name", ["conv_", "conv_nope"])
def test_a_conversation_that_is_missing_is_named(name: str) -> None:
    """By its id, however it was sent."""
    for conversation in (name, {"id": name}):
        exchange = create(conversation=conversation)
        if name == "conv_":
            document = json.loads(exchange.answer)
        else:
            _, document = exchange.fails(SessionNotFound("there is no such session"))
        assert document["error"]["message"] == f"Conversation with id '{name}' not found."
        assert document["error"]["param"] == "conversation"


def test_a_response_in_progress_is_a_conflict() -> None:
    """It cannot be deleted yet; one that is missing is 404."""
    path = {"url_path": "v1/responses/resp_s_1", "X-HTTP-Method-Override": "DELETE"}
    status, document = ask({}, headers=path).fails(TurnGap("in progress", field="turn"))
    assert (status, document["error"]["code"]) == (409, "turn_gap")
    assert document["error"]["param"] == "response_id"
    assert ask({}, headers=path).fails(TurnGap("there is no turn 1"))[0] == 404


@pytest.mark.parametrize(("path", "field"), [("", "items"), ("/items", "metadata")])
def test_a_conversation_takes_items_and_metadata_by_different_paths(path: str, field: str) -> None:
    """One that is sent to the path of the other is refused, not added and not left out."""
    document = {"items": USER, "metadata": {"a": "b"}}
    status, body = ask(document, headers={"url_path": f"v1/conversations/conv_s{path}"}).refusal
    assert (status, body["error"]["param"]) == (400, field)
    assert ask(document, headers={"url_path": "v1/conversations"}).submit


@pytest.mark.parametrize("path", ["v1/conversations", "v1/conversations/conv_s/items"])
def test_items_that_are_too_long_are_named(path: str) -> None:
    """They are the input of a response, but the items of a conversation."""
    document = {"items": [{"role": "user", "content": "hi"}]}
    error = ContextTooLong("too long", field="prompt")
    assert ask(document, headers={"url_path": path}).fails(error)[1]["error"]["param"] == "items"
    assert create().fails(error)[1]["error"]["param"] == "input"
