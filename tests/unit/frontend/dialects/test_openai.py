"""Requests of OpenAI's clients; test_openai_responder has the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import Exchange, ask
from tests.support.fake_dispatcher import ID, START
from ts_stateful.protocol.chat import Chat, RawPrompt, Said, Tool, ToolCall
from ts_stateful.protocol.errors import InvalidRequest, MediaInvalid
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Image
from ts_stateful.protocol.response_format import (
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    ResponseFormat,
)

CHAT = {"url_path": "v1/chat/completions"}
TOOLS: dict[str, Any] = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "a",
                "description": "Does it.",
                "parameters": {"type": "object", "properties": {}},
                "strict": True,
            },
        }
    ]
}
HI: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def completion(headers: dict[str, str] | None = None, **fields: Any) -> Exchange:
    return ask({**HI, **fields}, headers={**CHAT, **(headers or {})})


def messages(*texts: Any) -> Exchange:
    return completion(messages=list(texts))


def _clip_of(kind: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": "AAAA", "format": kind}}


def test_images_and_clips_in_any_order() -> None:
    """Each has its place, and an error has the client's path of it."""
    picture = {"type": "image_url", "image_url": {"url": "https://x/a.png"}}
    parts = [_clip_of("wav"), {"type": "text", "text": "and"}, picture, _clip_of("flac")]
    exchange = completion(messages=[{"role": "user", "content": parts}])
    assert isinstance(exchange.command, Chat)
    assert exchange.command.clips_at == (0, 2)
    kinds = [medium.kind for medium in exchange.command.media]
    assert kinds == ["audio", "images", "audio"]
    for field, path in (
        ("images[0].url", "messages[0].content[2].image_url.url"),
        ("audio[1].url", "messages[0].content[3].input_audio.data"),
    ):
        _, body = exchange.fails(MediaInvalid("no", field=field))
        assert body["error"]["param"] == path


@pytest.mark.parametrize("headers", [CHAT, {"url_path": "v1/chat/completions/"}, {}])
def test_the_path_or_the_body_shows_a_conversation(headers: dict[str, str]) -> None:
    """`/invocations` has no path after it."""
    exchange = ask(HI, headers=headers)
    assert exchange.command == Chat(
        session_id=exchange.command.session_id,
        max_new_tokens=1024,
        messages=(Said("user", ("hi",)),),
        parses=True,
    )
    assert exchange.submit.ephemeral


def test_everything_that_is_honoured() -> None:
    """Under OpenAI's names, and some that its clients send to other servers."""
    same: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 1,
        "frequency_penalty": -0.5,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 2,
    }
    command = completion(
        max_completion_tokens=5,
        seed=-1,
        stop=["a", "b"],
        stop_token_ids=[3],
        logit_bias={"50256": -100, "7": 0.5},
        **same,
    ).command
    assert command == Chat(
        session_id=command.session_id,
        messages=(Said("user", ("hi",)),),
        parses=True,
        max_new_tokens=5,
        seed=2**63 - 1,
        stop=("a", "b"),
        stop_token_ids=(3,),
        logit_bias={50256: -100, 7: 0.5},
        **same,
    )
    assert completion(stop=".", top_k=-1, max_tokens=7).command.stop == "."


CALL: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "index": 0,
    "function": {"name": "a", "arguments": '{"x": 1}'},
}


@pytest.mark.parametrize(
    ("choice", "calls", "parallel"),
    [
        (None, None, True),
        ("auto", None, True),
        ("required", "", False),
        ({"type": "function", "function": {"name": "a"}}, "a", True),
    ],
)
def test_tools_and_the_choice_among_them(choice: Any, calls: str | None, parallel: bool) -> None:
    """A call may be forced, and there may be several."""
    fields = {**TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
    command = completion(**fields).command
    assert command.tools == (Tool("a", "Does it.", {"type": "object", "properties": {}}),)
    assert (command.calls, command.parallel) == (calls, parallel)
    assert completion(**TOOLS, tool_choice="none").command.tools == ()


def test_tools_may_be_allowed_by_name() -> None:
    """The others are not shown to the model."""
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    named = {"mode": "required", "tools": tools[1:]}
    choice = {"type": "allowed_tools", "allowed_tools": named}
    command = completion(tools=tools, tool_choice=choice).command
    assert [tool.name for tool in command.tools] == ["b", "c"]
    assert command.calls == ""
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": tools}}
    _, body = completion(tools=tools, tool_choice=choice).refusal
    assert body["error"]["param"] == "tool_choice"


def test_a_forced_call_has_no_form_of_a_text() -> None:
    """Agents with tools and a type of their result send both; a turn without a forced call has the form."""
    form = {"response_format": {"type": "json_object"}}
    forced = completion(**TOOLS, **form, tool_choice="required").command
    assert (forced.calls, forced.response_format) == ("", None)
    assert completion(**TOOLS, **form).command.response_format == JsonObject()


def test_calls_and_results_in_a_history() -> None:
    """As the client got them, and with what it made of them."""
    command = messages(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ).command
    assert command.messages[1:] == (
        Said("assistant", ("",), (ToolCall("c1", "a", '{"x": 1}'),), reasoning="Hm."),
        Said("tool", ("2",), tool_call_id="c1"),
    )


MODELS: list[Any] = [5, 0, False, [], {}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"z": {"type": "null"}, "a": {}}}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            JsonSchema(SCHEMA),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            JsonSchema({}),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, JsonObject()),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Choice(("a", "b"))),
        ({"structured_outputs": {}}, None),
        ({"guided_json": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
        ({"guided_regex": "a+"}, Regex("a+")),
        ({"guided_choice": ["a"]}, Choice(("a",))),
        ({"guided_grammar": 'start: "a"'}, Grammar('start: "a"')),
        ({"json_schema": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
        ({"regex": "a+"}, Regex("a+")),
        ({"ebnf": 'root ::= "a"'}, Grammar('root ::= "a"')),
    ],
)
def test_a_form_has_several_names(fields: dict[str, Any], asked: ResponseFormat | None) -> None:
    """OpenAI's, vLLM's and SGLang's. The order of properties is kept: it is that of the reply."""
    found = completion(**fields).command.response_format
    assert found == asked
    if isinstance(found, JsonSchema) and found.schema:
        assert list(found.schema["properties"]) == ["z", "a"]


def test_an_error_names_the_clients_field() -> None:
    """The engine knows one name."""
    exchange = completion(guided_regex="(")
    _, body = exchange.fails(InvalidRequest("unclosed", field="response_format"))
    assert body["error"]["param"] == "guided_regex"


def test_a_reply_is_greedy_unless_it_is_asked_otherwise() -> None:
    """As everywhere on this server; sampled ones get a seed, for engines that die."""
    assert completion().command.temperature == 0
    assert completion(temperature=1).command.seed == 7


def test_messages_of_all_kinds() -> None:
    """Texts in one piece or several, images where they stand, a developer as the system."""
    url = "data:image/png;base64,AA=="
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "text", "text": "well?"},
    ]
    reply = {"role": "assistant", "content": "no", "refusal": None, "tool_calls": None}
    command = messages(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ann"},
        reply,
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ).command
    assert command.images == (Image(url=url),)
    assert command.messages == (
        Said("system", ("Be brief.",)),
        Said("user", ("Look:", None, "well?")),
        Said("assistant", ("no",)),
        Said("user", ("hi",)),
    )


def test_replies_of_other_models_are_taken() -> None:
    """A refusal is what the reply says, and what only describes a text is left out."""
    cited = {"content": "Yes.", "refusal": "", "audio": None, "annotations": [{"type": "x"}]}
    part = {"type": "refusal", "refusal": "No."}
    streamed = {"content": "", "refusal": "No."}  # as clients join the parts of a stream
    replies: list[dict[str, Any]] = [{"refusal": "No."}, {"content": [part]}, streamed, cited, {}]
    asked = completion(messages=[{"role": "assistant", **reply} for reply in replies])
    said = tuple(Said("assistant", (text,)) for text in ("No.", "No.", "No.", "Yes.", ""))
    assert asked.command.messages == said


def test_what_changes_nothing_is_taken() -> None:
    """Null, and the value that asks for nothing."""
    exchange = completion(
        user=None,
        store=False,
        service_tier="auto",
        min_p=0,
        repetition_penalty=1.0,
        chat_template_kwargs={},
        reasoning_effort="none",
        verbosity="medium",
        n=1,
        logprobs=False,
        top_logprobs=None,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        parallel_tool_calls=None,
        modalities=["text"],
        max_tokens=None,
        stream=False,
    )
    assert isinstance(exchange.command, Chat)
    assert exchange.pending.ignored == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 17}, "n"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": 2 * [{"function": {"name": "a"}}]}, "tools[1].function.name"),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"maximum": 2**70}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        *(
            (
                {**TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}},
                "tool_choice",
            )
            for allowed in (
                {"mode": "auto", "tools": [{"function": {"name": "b"}}]},
                {"mode": "auto", "tools": [{"type": "custom", "function": {"name": "a"}}]},
                {"tools": [{"function": {"name": "a"}}]},
                None,
            )
        ),
        ({**TOOLS, "tool_choice": {"function": {"name": "b"}}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"chat_template": "x"}, "chat_template"),
        *(({"store": True, "model": model}, "model") for model in MODELS),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"session_id": 5}, "session_id"),
        ({"session_id": "a b"}, "session_id"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {
                "messages": [
                    {"role": "tool", "tool_call_id": "c1", "content": "of no call"},
                    {"role": "assistant", "tool_calls": [CALL]},
                ]
            },
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].input_audio",
        ),
        (
            {"messages": [{"role": "user", "content": [_clip_of("mp3")]}]},
            "messages[0].content[0].input_audio.format",
        ),
        (
            {"messages": [{"role": "assistant", "content": [_clip_of("wav")]}]},
            "messages[0].content[0].input_audio",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "system",
                        "content": [{"type": "image_url", "image_url": {"url": "https://x"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url",
        ),
    ],
)
def test_what_is_wrong_or_not_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """In OpenAI's form."""
    status, body = completion(**fields).refusal
    assert status == 400
    assert body["error"]["param"] == param
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["code"] == "invalid_request"
    assert body["error"]["message"].startswith(param)


IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"user": "u"}, "user"),
    ({"max_tokens": 3, "max_completion_tokens": 5}, "max_tokens"),
    ({"tools": [{**TOOLS["tools"][0], "cache": 1}]}, "tools[].cache"),
    ({"tools": [{"function": {"name": "a", "cache": 1}}]}, "tools[].function.cache"),
    *(
        (
            {"messages": [{"role": "assistant", "tool_calls": [call]}]},
            f"messages[].tool_calls[].{name}",
        )
        for name, call in (
            ("mood", {**CALL, "mood": 1}),
            ("function.mood", {**CALL, "function": {"name": "a", "mood": 1}}),
        )
    ),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options"),
    ({"brand_new": 1}, "brand_new"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ({"messages": [{"role": "user", "content": "x", "id": "m1"}]}, "messages[].id"),
    ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages[].name"),
    (
        {"messages": [{"role": "assistant", "content": "x", "mood": "hm"}]},
        "messages[].mood",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
                    ],
                }
            ]
        },
        "messages[].content[].cache_control",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image_url",
                            "image_url": {"url": "https://x", "detail": "original"},
                        }
                    ],
                }
            ]
        },
        "messages[].content[].image_url.detail",
    ),
]


@pytest.mark.parametrize(("fields", "name"), IGNORED)
def test_what_has_no_effect_is_taken_and_named(fields: dict[str, Any], name: str) -> None:
    """Clients send new fields before servers know them."""
    assert completion(**fields).pending.ignored == (name,)


@pytest.mark.parametrize(("fields", "name"), IGNORED)
def test_a_strict_server_refuses_what_has_no_effect(fields: dict[str, Any], name: str) -> None:
    """`handler.strictRequests`; the error names the message too."""
    status, body = ask({**HI, **fields}, headers=CHAT, strict=True).refusal
    assert (status, body["error"]["param"].replace("[0]", "[]")) == (400, name)
    assert "strictRequests" in body["error"]["message"]


def test_names_of_ignored_fields_cannot_break_a_header() -> None:
    """They are the client's."""
    exchange = ask({**HI, "a\r\nSet-Cookie: x": 1, "\u20ac" * 100: 1}, headers=CHAT)
    assert exchange.pending.ignored == ("a??Set-Cookie??x", "?" * 64)
    many = ask({**HI, **{f"field-{number}": 1 for number in range(100)}}, headers=CHAT)
    assert len(many.pending.ignored) == 32


@pytest.mark.parametrize("model", [None, ""])
def test_without_a_model_there_is_only_one(model: str | None) -> None:
    """SageMaker's notebooks send an empty one."""
    exchange = completion(model=model)
    assert exchange.answered()["model"] == "chat"
    nameless = {"messages": HI["messages"]}
    assert isinstance(ask(nameless, headers=CHAT).command, Chat)


def test_a_reply_may_be_empty() -> None:
    """OpenAI's own library sends null for it."""
    assert messages({"role": "assistant", "content": None}).command.messages == (
        Said("assistant", ("",)),
    )


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'{"model": "chat", "model": "chat"}'])
def test_a_body_that_cannot_be_read_is_refused_in_the_form_that_the_path_selects(
    body: bytes,
) -> None:
    """OpenAI's for its paths, else this package's own."""
    assert ask(body, headers=CHAT).refusal[1]["error"]["type"] == "invalid_request_error"
    assert "retryable" in ask(body).refusal[1]["error"]


def test_a_conversation_has_so_many_messages_and_parts_at_most() -> None:
    """Although each is small."""
    message = {"role": "user", "content": ""}
    assert completion(messages=[message] * 4096).submit
    part = {"type": "text", "text": ""}
    parts = {"role": "user", "content": [part] * 100}
    for asked in ([message] * 4097, [parts] * 41, [{"role": "user", "content": [part] * 4097}]):
        status, body = completion(messages=asked).refusal
        assert (status, body["error"]["param"].partition("[")[0]) == (400, "messages")


def test_another_model_is_not_found() -> None:
    """The client has another server in mind."""
    status, body = completion(model="gpt-4o").refusal
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert body["error"]["param"] == "model"


def test_models_are_listed_and_shown() -> None:
    """The one that there is; without an engine, and without a body."""
    listed = json.loads(ask(b"", headers={"url_path": "v1/models"}).answer)
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["chat"])
    assert json.loads(ask(b"", headers={"url_path": "v1/models/chat"}).answer)["id"] == "chat"
    assert ask(b"", headers={"url_path": "v1/models/x"}).refusal[0] == 404


@pytest.mark.parametrize("path", ["v1/embeddings", "v1/", "v1"])
def test_another_path_is_not_found(path: str) -> None:
    """There are no embeddings here."""
    status, body = ask(HI, headers={"url_path": path}).refusal
    assert (status, body["error"]["code"]) == (404, "unknown_url")


def test_with_a_session_header_the_session_goes_on() -> None:
    """An id names it, `none yet` opens one that stays; the body may do the same."""
    submit = completion({ID: "s"}).submit
    assert (submit.command.session_id, submit.creates_session, submit.ephemeral) == (
        "s",
        False,
        False,
    )
    for value in ("", "NEW_SESSION"):
        submit = completion({ID: value}).submit
        assert (submit.creates_session, submit.ephemeral) == (True, False)
    assert not completion(session_id="s").submit.creates_session
    assert not completion(session_id="NEW_SESSION").submit.ephemeral
    assert completion({ID: "s"}, session_id="t").refusal[0] == 400


def test_an_id_that_torchserve_has_made_is_no_session_header() -> None:
    """In the sequence profile it makes one for every request without."""
    headers = {**CHAT, ID: "ts-seq-1", START: "true"}
    submit = ask(HI, headers=headers, profile=Profile.SEQUENCE).submit
    assert submit.ephemeral
    assert submit.command.session_id != "ts-seq-1"


TEXT = {"url_path": "v1/completions"}


def test_a_text_is_continued() -> None:
    """Without a session, and without messages."""
    document = {"model": "chat", "prompt": ["Once"], "temperature": 0.5, "seed": 3, "user": "u"}
    exchange = ask(document, headers=TEXT)
    command = exchange.submit.command
    assert command == RawPrompt(
        session_id=command.session_id, prompt="Once", max_new_tokens=16, temperature=0.5, seed=3
    )
    assert exchange.submit.ephemeral
    assert exchange.pending.ignored == ("user",)


def test_a_text_may_be_its_token_ids() -> None:
    """As evaluation programs send it; several are divided among the choices."""

    def texts(prompt: Any) -> Any:
        submit = ask({"prompt": prompt}, headers=TEXT).submit
        command = submit.command
        assert isinstance(command, RawPrompt)
        assert submit.choices == len(command.texts)
        return command.texts

    assert texts([7, 8]) == ((7, 8),)
    assert texts([[7, 8]]) == ((7, 8),)
    assert texts([[7, 8], "Once", [9]]) == ((7, 8), "Once", (9,))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 65 * ["a"]}, "prompt"),
        ({"prompt": 65 * [[1]]}, "prompt"),
        ({"prompt": 9 * ["a"], "n": 8}, "n"),
        ({"prompt": None}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_a_text_request_is_checked(fields: dict[str, Any], param: str) -> None:
    """As a chat's."""
    status, body = ask({"prompt": "Once", **fields}, headers=TEXT).refusal
    assert (status, body["error"]["param"].partition("[")[0]) == (400, param)


def test_a_text_has_no_session() -> None:
    """There are no messages to compare."""
    status, body = ask({"prompt": "Once"}, headers={**TEXT, START: "true", ID: "s-1"}).refusal
    assert (status, body["error"]["param"]) == (400, "session_id")


@pytest.mark.parametrize(
    ("path", "body"),
    [("v1/chat/completions", HI), ("v1/responses", {"model": "chat", "input": "hi"})],
)
def test_a_parameter_of_the_url_is_a_field(path: str, body: dict[str, Any]) -> None:
    """Clients of gateways send `api-version`, which is ignored and named as any field that is unknown; the body wins."""
    sent = {"body": json.dumps(body).encode(), "api-version": b"2024-10-21", "model": b"other"}
    exchange = ask(b"", headers={"url_path": path}, data=sent)
    assert exchange.submitted is not None
    assert exchange.pending.ignored == ("api-version",)
