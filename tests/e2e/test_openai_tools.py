"""OpenAI's client and a model that calls a tool: the call, its result, and nothing computed twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.server import ROOT, profile_server
from tests.e2e.speak import DEADLINE_S
from tests.support.open_responses import events_of
from tests.support.tiny import save
from tests.support.tiny.calling import ANSWER, ARGUMENTS, REASONING, TOOL, calling
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

TOOLS: Any = [{"type": "function", "function": TOOL}]
MESSAGES: list[Any] = [{"role": "user", "content": "What color is the circle?"}]


@pytest.fixture(scope="module", params=[Profile.ASGI, Profile.CONTINUOUS], ids=lambda p: p.value)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """Both fronts, with the model in the hub's layout."""
    folder: Path = tmp_path_factory.mktemp("tools")
    model = save(calling(), folder / "model")
    name = f"openai-tools-{request.param.value}"
    with profile_server(request.param, folder, name=name, model=model) as server:
        yield server


@pytest.fixture
def client(server: LocalServer) -> Iterator[OpenAI]:
    """A client of it."""
    with OpenAI(
        base_url=f"{server.http_url}/predictions/chat/1.0/v1",
        api_key="none",
        timeout=DEADLINE_S,
        max_retries=0,
    ) as client:
        yield client


def test_a_call_and_its_result(client: OpenAI) -> None:
    """As programs do it: the message goes back as it came, then the result. There is no session."""
    first = client.chat.completions.create(model="chat", messages=MESSAGES, tools=TOOLS)
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.model_extra == {"reasoning_content": REASONING}
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_color"
    assert json.loads(call.function.arguments) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call.id, "content": "red"}
    messages: list[Any] = [*MESSAGES, choice.message, result]
    second = client.chat.completions.create(model="chat", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == ANSWER
    assert second.choices[0].finish_reason == "stop"
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens


def test_a_streamed_call(client: OpenAI) -> None:
    """The client's own helper puts the pieces together."""
    with client.chat.completions.stream(model="chat", messages=MESSAGES, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert json.loads(call.function.arguments) == ARGUMENTS


def test_a_forced_call(client: OpenAI) -> None:
    """Of a function that the model would not have called; with `none` it calls nothing."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    count: Any = {"name": "count", "parameters": schema}
    tools: Any = [*TOOLS, {"type": "function", "function": count}]
    forced = client.chat.completions.create(
        model="chat",
        messages=MESSAGES,
        tools=tools,
        tool_choice={"type": "function", "function": {"name": "count"}},
        max_tokens=300,
    ).choices[0]
    (call,) = forced.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "count"
    assert forced.finish_reason == "stop"
    choice: Any = "any"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="chat", messages=MESSAGES, tools=TOOLS, tool_choice=choice
        )
    assert refused.value.param == "tool_choice"


def test_a_typed_reply_may_call_a_tool_first(client: OpenAI) -> None:
    """As agents with a typed result ask: `response_format` beside tools, of which the model chooses by its first token."""
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "color", "schema": {"enum": [{"color": "red"}]}},
    }
    mark, brace = calling().tokenizer.convert_tokens_to_ids(["<tool_call>", "{"])
    for wanted, other in ((mark, brace), (brace, mark)):
        (choice,) = client.chat.completions.create(
            model="chat",
            messages=MESSAGES,
            tools=TOOLS,
            response_format=form,
            logit_bias={str(other): -100},
        ).choices
        if wanted == mark:
            (call,) = choice.message.tool_calls or []
            assert call.type == "function"
            assert json.loads(call.function.arguments)["shape"] in ("circle", "square")
            assert choice.finish_reason == "tool_calls"
        else:
            assert json.loads(choice.message.content or "") == {"color": "red"}
            assert choice.finish_reason == "stop"


def test_tools_are_used_as_shown(client: OpenAI, capsys: pytest.CaptureFixture[str]) -> None:
    """The block of docs/clients.md, after a question."""
    text = (ROOT / "docs" / "clients.md").read_text()
    (block,) = [
        one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "tools=" in one
    ]
    exec(block, {"client": client, "messages": MESSAGES})
    assert capsys.readouterr().out == f"get_color {json.dumps(ARGUMENTS)}\n"


def test_a_call_and_its_result_as_responses(client: OpenAI) -> None:
    """Reasoning and the call are items; the result alone goes back. An older response branches."""
    tools: Any = [{"type": "function", "strict": True, **TOOL}]
    asked: Any = {"model": "chat", "tools": tools, "instructions": "Use tools."}
    first = client.responses.create(input="What color is the circle?", **asked)
    reasoning, call = first.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or []] == [REASONING]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == (TOOL["name"], ARGUMENTS)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "red"}
    for turn in (2, 2):
        second = client.responses.create(input=[result], previous_response_id=first.id, **asked)
        assert second.output_text == ANSWER
        assert second.id.endswith(f"_{turn}")
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens
    items: Any = [{"role": "user", "content": "What color is the circle?"}]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    alone = client.responses.create(input=[*items, result], **asked)
    assert alone.output_text == ANSWER
    assert alone.usage is not None
    assert alone.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens


def test_a_reference_stands_beside_the_calls_of_its_reply(client: OpenAI) -> None:
    """As Vercel's AI SDK sends both: the call is in the prompt once, also after a response that the client names."""
    question: Any = {"role": "user", "content": "What color is the circle?"}
    asked: Any = {"model": "chat", "tools": [{"type": "function", **TOOL}]}
    before: Any = None
    for _ in range(2):
        first = client.responses.create(input=[question], previous_response_id=before, **asked)
        reasoning, call = first.output
        reference: Any = {"type": "item_reference", "id": reasoning.id}
        sent: Any = call.to_dict()
        result: Any = {"type": "function_call_output", "call_id": sent["call_id"], "output": "red"}
        items: Any = [question, reference, sent, result]
        second = client.responses.create(input=items, previous_response_id=before, **asked)
        third = client.responses.create(input=[result], previous_response_id=first.id, **asked)
        assert second.output_text == third.output_text == ANSWER
        assert second.usage is not None
        assert third.usage is not None
        assert second.usage.input_tokens == third.usage.input_tokens
        kinds = [item.type for item in client.responses.input_items.list(second.id)]
        assert kinds[:4] == ["function_call_output", "function_call", "reasoning", "message"]
        before = second.id
    foreign: Any = {**sent, "call_id": "another"}
    with pytest.raises(openai.BadRequestError, match="send all items themselves"):
        client.responses.create(input=[question, reference, foreign, result], **asked)


def test_a_streamed_call_of_a_response(client: OpenAI) -> None:
    """The client's own helper puts the pieces together, and the server has the same."""
    tools: Any = [{"type": "function", "strict": True, **TOOL}]
    with client.responses.stream(model="chat", input="What color?", tools=tools) as stream:
        final = stream.get_final_response()
    kept: Any = client.responses.retrieve(final.id).output
    made: Any = final.output
    assert [item.id for item in kept] == [item.id for item in made]
    assert final.output[-1].type == "function_call"
    assert final.output[-1].parsed_arguments == ARGUMENTS


def test_responses_at_both_fronts(client: OpenAI) -> None:
    """Without a body, and what TorchServe does not pass on."""
    first = client.responses.create(model="chat", input="What color is the circle?")
    assert client.responses.retrieve(first.id) == first
    url = f"{client.base_url}responses/{first.id}"
    asked = {"stream": True, "starting_after": 1}
    with httpx.stream("POST", url, json=asked, timeout=DEADLINE_S) as answer:
        events = list(events_of(answer.iter_lines()))
    assert events[0]["sequence_number"] == 2
    assert events[-1]["response"] == first.to_dict()
    items = client.responses.input_items.list(first.id)
    assert [item.type for item in items] == ["message"]
    made = client.conversations.create(metadata={"topic": "shapes"})
    client.conversations.update(made.id, metadata={"topic": "colors"})
    assert client.conversations.retrieve(made.id).metadata == {"topic": "colors"}
    client.responses.delete(first.id, extra_headers={"X-HTTP-Method-Override": "DELETE"})
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
