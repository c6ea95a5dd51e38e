"""Replies that reason and call tools: found in what the model writes, kept as it wrote it, and continued with the result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from tests.support.harness import Harness, reference_reply
from tests.support.memory_store import MemoryStore
from tests.support.tiny import llama
from tests.support.tiny.calling import ANSWER, ARGUMENTS, REASONING, TOOL, calling
from ts_stateful.protocol.chat import Chat, Said, Tool, ToolCall
from ts_stateful.protocol.response_format import (
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    ResponseFormat,
)

GET_COLOR = Tool(TOOL["name"], TOOL["description"], TOOL["parameters"])
COUNT = Tool("count", "Count shapes.", {"type": "object", "properties": {}})
QUESTION = Said("user", ("What color is the circle?",))
NEW_TOKENS = 40


def chat(*messages: Said, **fields: Any) -> Chat:
    """A request of a client that keeps the conversation itself."""
    settings: dict[str, Any] = {"tools": (GET_COLOR,), "max_new_tokens": NEW_TOKENS, **fields}
    return Chat(session_id="s", messages=messages or (QUESTION,), parses=True, **settings)


def result(call: dict[str, Any]) -> tuple[Said, Said]:
    """The messages with which a client goes on after a call: without the reasoning, as OpenAI's client sends them."""
    return (
        Said("assistant", ("",), tool_calls=(ToolCall(**call),)),
        Said("tool", ("red",), tool_call_id=call["id"]),
    )


def test_a_call_and_what_follows_from_its_result() -> None:
    """Nothing of the history is computed again, and every reply is what stock code generates."""
    harness = Harness(calling())
    first = harness.ask(chat(), creates_session=True)
    (call,) = first["tool_calls"]
    assert (first["text"], first["reasoning"], first["finish_reason"]) == ("", REASONING, "stop")
    assert (call["name"], json.loads(call["arguments"])) == ("get_color", ARGUMENTS)
    reference_reply(harness.model, harness, "s", NEW_TOKENS)
    second = harness.ask(chat(QUESTION, *result(call)))
    assert second["text"] == ANSWER
    assert "tool_calls" not in second
    reference_reply(harness.model, harness, "s", NEW_TOKENS)
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known
    assert second["turn"] == 2


def test_a_stream_is_the_whole_in_pieces() -> None:
    """Reasoning as it comes, a call when it is complete."""
    harness = Harness(calling())
    whole = harness.ask(chat(), creates_session=True)
    harness.close("s")
    request = harness.submit(chat(stream=True), creates_session=True)
    harness.run()
    documents = harness.documents(request)
    assert "".join(one.get("reasoning", "") for one in documents) == whole["reasoning"]
    calls = [call for one in documents for call in one.get("tool_calls", ())]
    assert [call["arguments"] for call in calls] == [
        call["arguments"] for call in whole["tool_calls"]
    ]
    assert sum(bool(one.get("reasoning")) for one in documents) > 1


@pytest.mark.parametrize("tools", [(GET_COLOR,), ()], ids=["a call", "text"])
def test_log_probabilities_are_those_of_the_text(tools: tuple[Tool, ...]) -> None:
    """Neither of reasoning, nor of marks and calls; a stream has the same ones."""
    harness = Harness(calling())
    asked = chat(tools=tools, logprobs=True)
    whole = harness.ask(asked, creates_session=True)
    assert "".join(token["token"] for token in whole["logprobs"]) == whole["text"]
    assert bool(whole["text"]) is not bool(tools)
    harness.close("s")
    request = harness.submit(structs.replace(asked, stream=True), creates_session=True)
    harness.run()
    parts = [one.get("logprobs", []) for one in harness.documents(request)]
    assert [token for part in parts for token in part] == whole["logprobs"]


def test_tokens_of_reasoning_are_counted() -> None:
    """With the marks around it, also for a stream, at the limit, and by an engine that goes on with a reply."""
    model, store = calling(), MemoryStore()
    harness = Harness(model, store=store)
    num_thought = len(model.tokenizer(f"<think>{REASONING}</think>").input_ids)
    details = {"reasoning_tokens": num_thought}
    first = harness.ask(chat(), creates_session=True, request_id="a")
    assert first["usage"]["completion_tokens_details"] == details
    replayed = Harness(model, store=store).ask(chat(), request_id="a", is_retry=True)
    assert replayed["usage"] == first["usage"]
    second = harness.ask(chat(QUESTION, *result(first["tool_calls"][0])))
    assert "completion_tokens_details" not in second["usage"]
    request = harness.submit(chat(stream=True))
    harness.run()
    assert harness.last(request)["usage"]["completion_tokens_details"] == details
    cut = harness.ask(chat(max_new_tokens=3))
    assert cut["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    ids = tuple(model.tokenizer(f"<think>{REASONING}").input_ids)
    other = Harness(model).ask(chat(), creates_session=True, is_retry=True, replay=ids)
    assert other["usage"]["completion_tokens_details"] == details


@pytest.mark.parametrize("steps", range(2, 9))
def test_a_stream_goes_on_after_a_crash(steps: int) -> None:
    """Wherever the engine dies: in the reasoning, in a mark, in a call. The ids of calls are the same too."""
    model, command = calling(), chat(stream=True)
    harness = Harness(model)
    whole = harness.ask(chat(), creates_session=True)
    first, second = Harness(model), Harness(model, first_id=1)
    request = first.submit(command, creates_session=True)
    while len(first.events.get(request, ())) < steps and first.engine.busy:
        first.steps(1)
    events = first.events[request]
    second.submit(
        command,
        request,
        creates_session=True,
        is_retry=True,
        skip=sum(event.num_chars for event in events),
        replay=tuple(token for event in events for token in event.token_ids),
    )
    second.run()
    documents = [*first.documents(request), *second.documents(request)]
    assert "".join(one.get("reasoning", "") for one in documents) == REASONING
    calls = [call for one in documents for call in one.get("tool_calls", ())]
    assert len(calls) == 1
    assert calls[0]["arguments"] == whole["tool_calls"][0]["arguments"]


@pytest.mark.parametrize(
    "arguments",
    ['{"x": "\\ud800"}', '{"x": ' + "[" * 550 + "]" * 550 + "}"],
    ids=["half a character", "nested deeply"],
)
def test_arguments_that_cannot_be_written_as_an_object_are_a_text(arguments: str) -> None:
    """Clients repeat the arguments as a model wrote them, which may be anything."""
    harness = Harness(calling(), store=MemoryStore())
    call = {"id": "call-1", "name": "get_color", "arguments": arguments}
    answer = harness.ask(chat(QUESTION, *result(call)), creates_session=True)
    assert "error" not in answer
    reference_reply(harness.model, harness, "s", NEW_TOKENS)


def test_a_conversation_with_calls_needs_no_session() -> None:
    """The client repeats the call without the reasoning: that is the same conversation."""
    harness = Harness(calling())
    first = harness.ask(chat(), creates_session=True, ephemeral=True)
    (call,) = first["tool_calls"]
    again = structs.replace(chat(QUESTION, *result(call)), session_id="t")
    second = harness.ask(again, creates_session=True, ephemeral=True)
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known
    other = (structs.replace(QUESTION, parts=("And the square?",)), *result(call))
    third = harness.ask(
        structs.replace(chat(*other), session_id="u"), creates_session=True, ephemeral=True
    )
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] < known


def test_calls_are_in_the_store() -> None:
    """Another engine continues with the result, and answers the turn again with the same call."""
    store, model = MemoryStore(), calling()
    first, second = Harness(model, store=store), Harness(model, store=store)
    made = first.ask(chat(turn=1), creates_session=True)
    again = second.ask(chat(turn=1))
    assert again["replayed"]
    assert again["tool_calls"] == made["tool_calls"]
    assert again["reasoning"] == made["reasoning"]
    follow = second.ask(chat(QUESTION, *result(made["tool_calls"][0])))
    assert (follow["text"], follow["turn"]) == (ANSWER, 2)


@pytest.mark.parametrize(
    ("calls", "parallel"), [("", True), ("", False), ("count", True), ("get_color", True)]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_call_can_be_forced(calls: str, parallel: bool, seed: int) -> None:
    """Of any tool or of one; its arguments follow the tool's schema, also where the model is at random."""
    harness = Harness(calling())
    command = chat(
        tools=(GET_COLOR, COUNT),
        calls=calls,
        parallel=parallel,
        max_new_tokens=400,
        temperature=3.0,
        seed=seed,
    )
    answer = harness.ask(command, creates_session=True)
    assert answer["text"] == ""
    made = answer["tool_calls"]
    assert len(made) == 1 or (parallel and not calls) or answer["finish_reason"] == "length"
    for call in made:
        assert call["name"] == calls or (not calls and call["name"] in ("get_color", "count"))
        arguments = json.loads(call["arguments"])
        assert call["name"] != "get_color" or arguments["shape"] in ("circle", "square")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (JsonSchema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}), "{"),
        (JsonObject(), "{"),
        (Choice(("red", "green")), "green"),
        (Regex("(ab)+"), "ab"),
        (Grammar('start: "red" " "? "blue"'), "red"),
        (Grammar('root ::= "red" "blue"'), "red"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_reply_with_a_form_may_call_tools_instead(form: ResponseFormat, text: str) -> None:
    """As agents with a typed result need it: the model chooses by its first token, and either is complete."""
    model = calling()
    harness = Harness(model)

    def ask(first: str, **fields: Any) -> dict[str, Any]:
        (bias, *_) = model.tokenizer.encode(first, add_special_tokens=False)
        settings = {"logit_bias": {bias: 30.0}, "response_format": form, **fields}
        request = chat(tools=(GET_COLOR, COUNT), max_new_tokens=200, **settings)
        answer: dict[str, Any] = harness.ask(request, creates_session=True)
        harness.close("s")
        return answer

    called = ask("<tool_call>", temperature=1.0, seed=1, parallel=False)
    assert (called["text"], called["finish_reason"]) == ("", "stop")
    (call,) = called["tool_calls"]
    assert call["name"] in ("get_color", "count")
    formed = ask(text, min_p=1.0)
    assert "tool_calls" not in formed
    assert formed["text"].startswith(text)


@pytest.mark.parametrize("fields", [{"calls": ""}, {"response_format": Choice(("red",))}])
def test_a_reply_with_a_form_has_no_reasoning(fields: dict[str, Any]) -> None:
    """Where the chat template has begun some."""
    model = calling()
    template = model.tokenizer.chat_template
    end = "{% endif %}"
    model.tokenizer.chat_template = template.removesuffix(end) + "<think>" + end
    answer = Harness(model).ask(chat(max_new_tokens=200, **fields), creates_session=True)
    assert answer["text"] == "red" or answer["tool_calls"]
    assert "reasoning" not in answer


def test_a_model_whose_calls_have_no_grammar_keeps_the_form() -> None:
    """Calls cannot be forced either."""
    model = calling()
    template = model.text.reply_template
    assert template is not None
    template.call_marks = None
    harness = Harness(model)
    formed = harness.ask(chat(response_format=Choice(("red",))), creates_session=True)
    assert formed["text"] == "red"
    error = harness.ask(chat(calls=""))["error"]
    assert (error["code"], error["field"]) == ("invalid_request", "tool_choice")


@pytest.mark.parametrize("fields", [{"calls": ""}, {"response_format": Choice(("red",))}])
def test_arguments_follow_schemas_with_references(fields: dict[str, Any]) -> None:
    """As pydantic writes them, from the root of each tool's schema; keywords that no grammar has are left to the model."""
    shape = {"type": "object", "properties": {"name": {"enum": ["circle"]}}, "required": ["name"]}
    paint: dict[str, Any] = {
        "type": "object",
        "properties": {
            "shape": {"$ref": "#/$defs/Shape"},
            "tags": {"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"const": 1}},
        },
        "required": ["shape", "tags"],
        "additionalProperties": False,
        "$defs": {"Shape": {**shape, "additionalProperties": False}},
    }
    model = calling()
    (mark,) = model.tokenizer.encode("<tool_call>", add_special_tokens=False)
    command = chat(
        tools=(Tool("paint", "", paint), Tool("draw", "", paint)),
        logit_bias={mark: 30.0},
        parallel=False,
        max_new_tokens=200,
        temperature=2.0,
        seed=1,
        **fields,
    )
    (call,) = Harness(model).ask(command, creates_session=True)["tool_calls"]
    assert call["name"] in ("paint", "draw")
    arguments = json.loads(call["arguments"])
    assert arguments["shape"] == {"name": "circle"}
    assert arguments["tags"] in ([], [1])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"calls": ""}, "tools"),
        ({"response_format": Choice(("red",))}, "tools"),
        ({"response_format": Regex("(?=a)b")}, "response_format"),
    ],
)
def test_a_schema_that_no_grammar_has_is_named(fields: dict[str, Any], field: str) -> None:
    """Without a form and a forced call it is only shown to the model."""
    broken = Tool("paint", "", {"type": "object", "properties": {"a": {"$ref": "#/none"}}})
    harness = Harness(calling())
    error = harness.ask(chat(tools=(broken,), **fields), creates_session=True)["error"]
    assert (error["code"], error["field"]) == ("invalid_request", field)
    harness.close("s")
    assert "error" not in harness.ask(chat(tools=(broken,)), creates_session=True)


def test_a_model_without_calls_says_so() -> None:
    """Neither its template nor the library knows their form."""
    harness = Harness(llama())
    error = harness.ask(chat(), creates_session=True)["error"]
    assert (error["code"], error["field"]) == ("invalid_request", "tools")
    assert "response template" in error["message"]


def test_without_tools_there_is_the_text() -> None:
    """A model without a response template gives what it writes."""
    harness = Harness(llama())
    parsed = harness.ask(chat(tools=(), ignore_eos=True), creates_session=True)
    harness.close("s")
    plain = harness.ask(
        structs.replace(chat(tools=(), ignore_eos=True), parses=False), creates_session=True
    )
    assert parsed["text"] == plain["text"] != ""


def test_requests_without_the_tools_do_not_undo_those_with_them() -> None:
    """As a title after each answer of an agent: each copies what its like has computed, and what fails leaves nothing."""
    model = calling()
    harness = Harness(model)
    numbers = iter(range(100))

    def send(*messages: Said, steps: int | None = None, **fields: Any) -> dict[str, Any]:
        name = f"s{next(numbers)}"
        request = structs.replace(chat(*messages, **fields), session_id=name)
        if steps is None:
            answer: dict[str, Any] = harness.ask(request, creates_session=True, ephemeral=True)
            return answer
        dropped = harness.submit(request, creates_session=True, ephemeral=True)
        harness.steps(steps)
        harness.engine.drop(dropped)
        harness.engine.tick()
        harness.engine.check_integrity()
        return {}

    def new(answer: dict[str, Any]) -> int:
        usage = answer["usage"]
        return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

    title = Said("user", ("Write a title.",))
    told = [QUESTION]
    for number in range(4):
        agent = send(*told)
        (call,) = agent["tool_calls"]
        told += result(call)
        spoken = send(*told)
        assert spoken["text"] == ANSWER
        told.append(Said("assistant", (ANSWER,)))
        send(*told, title, tools=(), steps=3)
        named = send(*told, title, tools=())
        alone = Harness(model).ask(chat(*told, title, tools=()), creates_session=True)
        assert named["text"] == alone["text"]
        if number == 3:
            assert max(map(new, (agent, spoken, named))) < named["usage"]["prompt_tokens"] / 2
        told.append(QUESTION)
