"""Answers to OpenAI's clients: completions, chunks and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.support.dialects import REPLY, Exchange, ask
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import (
    ContextTooLong,
    EngineUnavailable,
    InvalidRequest,
    MediaForbidden,
    QueueFull,
    SessionExpired,
    StatefulError,
)
from ts_stateful.protocol.events import Event, EventKind


def completion(**fields: Any) -> Exchange:
    messages = [{"role": "user", "content": "hi"}]
    return ask({"model": "chat", "messages": messages, **fields})


def chunks(stream: bytes) -> list[Any]:
    """The documents of a stream that ends as it should."""
    *events, done, nothing = stream.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_completion() -> None:
    """With counts, those of the cache among them."""
    document = completion().answered()
    assert document["object"] == "chat.completion"
    assert document["model"] == "chat"
    assert document["id"].startswith("chatcmpl-")
    (choice,) = document["choices"]
    assert choice["message"] == {"role": "assistant", "content": "red", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert document["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize(("reason", "shown"), [("length", "length"), ("stop", "tool_calls")])
def test_a_reply_that_was_cut_says_so(reason: str, shown: str) -> None:
    """Although it has a call already, whole and streamed: the next one may be missing."""
    call = {"id": "c1", "name": "a", "arguments": "{}"}
    reply = {**REPLY, "tool_calls": [call], "finish_reason": reason}
    assert completion().answered(reply)["choices"][0]["finish_reason"] == shown
    last = Event("r", EventKind.LAST, encode(reply))
    *_, end = chunks(completion(stream=True).responder.piece(last))
    assert end["choices"][0]["finish_reason"] == shown


def test_a_stream_of_chunks() -> None:
    """The role comes first, the reason last, and the counts where they are asked for."""
    got = chunks(completion(stream=True).streamed("dark", " "))
    deltas = [chunk["choices"][0]["delta"] for chunk in got]
    assert deltas == [
        {"role": "assistant", "content": "dark"},
        {"content": " "},
        {"content": "red"},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in got]
    assert reasons == [None, None, None, "stop"]
    assert len({chunk["id"] for chunk in got}) == 1
    assert all("usage" not in chunk for chunk in got)
    counted = completion(stream=True, stream_options={"include_usage": True}).streamed("a")
    *others, last = chunks(counted)
    assert all(chunk["usage"] is None for chunk in others)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 11)


def test_a_stream_without_pieces_has_a_role_all_the_same() -> None:
    """Short replies are one event."""
    got = chunks(completion(stream=True).streamed())
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": "red"}


def test_a_stream_that_breaks_ends_with_the_error() -> None:
    """Without DONE: clients raise it."""
    stream = completion(stream=True).streamed("a", error=EngineUnavailable("gone")).decode()
    last = stream.removesuffix("\n\n").split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    ("error", "status", "code", "kind", "param"),
    [
        (
            ContextTooLong("x", field="prompt"),
            400,
            "context_length_exceeded",
            "invalid_request_error",
            "messages",
        ),
        (
            InvalidRequest("x", field="system"),
            400,
            "invalid_request",
            "invalid_request_error",
            "messages",
        ),
        (SessionExpired("x"), 410, "session_expired", "invalid_request_error", None),
        (QueueFull("x"), 429, "queue_full", "rate_limit_error", None),
        (EngineUnavailable("x"), 503, "engine_unavailable", "server_error", None),
    ],
)
def test_errors_of_the_engine(
    error: StatefulError, status: int, code: str, kind: str, param: str | None
) -> None:
    """In OpenAI's form, and where it has a code of its own, by that."""
    message = "x" if param is None else f"{param}: x"
    expected = {"message": message, "type": kind, "param": param, "code": code}
    assert completion().fails(error) == (status, {"error": expected})


def test_an_image_is_called_as_the_client_does() -> None:
    """Which message, which part."""
    image = {"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}
    exchange = completion(
        messages=[
            {"role": "user", "content": [image]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        ]
    )
    status, body = exchange.fails(MediaForbidden("x", field="images[1].url"))
    assert status == 403
    assert body["error"]["param"] == "messages[1].content[1].image_url.url"


def test_a_text_completion() -> None:
    """Its pieces have the same type as the whole."""
    exchange = ask({"prompt": "Once"}, headers={"url_path": "v1/completions"})
    document = exchange.answered()
    assert (document["object"], document["id"][:5]) == ("text_completion", "cmpl-")
    assert document["choices"] == [
        {"index": 0, "text": "red", "logprobs": None, "finish_reason": "stop"}
    ]
    streaming = ask({"prompt": "Once", "stream": True}, headers={"url_path": "v1/completions"})
    got = chunks(streaming.streamed("dark"))
    assert [chunk["choices"][0]["text"] for chunk in got] == ["dark", "red", ""]
    assert {chunk["object"] for chunk in got} == {"text_completion"}
    status, body = exchange.fails(InvalidRequest("x", field="prompt"))
    assert (status, body["error"]["param"]) == (400, "prompt")


def _scored(text: str, logprob: float, token_id: int) -> dict[str, Any]:
    return {"id": token_id, "token": text, "bytes": list(text.encode()), "logprob": logprob}


SCORED: list[dict[str, Any]] = [
    {**_scored("re", -0.5, 4), "text_offset": 0, "top_logprobs": [_scored("re", -0.5, 4)]},
    {**_scored("d", -0.25, 5), "text_offset": 2, "top_logprobs": [_scored("d", -0.25, 5)]},
]


def test_log_probabilities_of_a_chat() -> None:
    """Without our ids, which its type lacks; a client's own type takes them."""
    exchange = completion(logprobs=True, top_logprobs=1)
    document = exchange.answered({**REPLY, "logprobs": SCORED})
    logprobs = ChatCompletion.model_validate(document).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [one.token for one in logprobs.content] == ["re", "d"]
    assert document["choices"][0]["logprobs"]["content"][1] == {
        "token": "d",
        "bytes": [100],
        "logprob": -0.25,
        "top_logprobs": [{"token": "d", "bytes": [100], "logprob": -0.25}],
    }


def test_log_probabilities_come_with_the_pieces_of_a_stream() -> None:
    """Also those of tokens that had no text of their own, at the end."""
    events = [
        Event("r", EventKind.PART, encode({"text": "red", "logprobs": SCORED[:1]})),
        Event("r", EventKind.LAST, encode({**REPLY, "text": "", "logprobs": SCORED[1:]})),
    ]
    responder = completion(stream=True, logprobs=True).responder
    got = chunks(b"".join(map(responder.piece, events)))
    shown = [chunk["choices"][0]["logprobs"] for chunk in got]
    tokens = [[one["token"] for one in part["content"]] if part else None for part in shown]
    assert tokens == [["re"], ["d"], None]


def test_log_probabilities_of_a_text() -> None:
    """In four lists."""
    exchange = ask({"prompt": "Once", "logprobs": 1}, headers={"url_path": "v1/completions"})
    assert exchange.command.top_logprobs == 1
    document = exchange.answered({**REPLY, "logprobs": SCORED})
    assert document["choices"][0]["logprobs"] == {
        "tokens": ["re", "d"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"re": -0.5}, {"d": -0.25}],
        "text_offset": [0, 2],
    }


def test_each_token_of_a_text_has_a_key_of_its_own() -> None:
    """Those with parts of a character too; the sampled one is there, however few were asked for."""
    halves = [{"id": n, "token": "\ufffd", "bytes": [n], "logprob": -n} for n in (226, 240)]
    tops = [halves, [], [_scored("a", -1, 9)]]
    scored = [{**halves[0], "text_offset": 0, "top_logprobs": top} for top in tops]
    exchange = ask({"prompt": "Once", "logprobs": 0}, headers={"url_path": "v1/completions"})
    shown = exchange.answered({**REPLY, "logprobs": scored})["choices"][0]["logprobs"]
    assert shown["tokens"][0] == "bytes:\\xe2"
    assert shown["top_logprobs"] == [
        {"bytes:\\xe2": -226, "bytes:\\xf0": -240},
        {"bytes:\\xe2": -226},
        {"a": -1, "bytes:\\xe2": -226},
    ]


def _choice(index: int, kind: EventKind, text: str, **fields: Any) -> Event:
    reply = REPLY if kind is not EventKind.PART else {}
    return Event("r", kind, encode({**reply, "text": text, **fields}), choice=index)


def test_several_choices() -> None:
    """In the order of their indexes; the prompt counts once."""
    exchange = completion(n=3)
    assert exchange.submit.choices == 3
    exchange.pending.add(
        [
            _choice(2, EventKind.CHOICE, "c"),
            _choice(0, EventKind.CHOICE, "a", finish_reason="length"),
            _choice(1, EventKind.LAST, "b"),
        ]
    )
    response = exchange.pending.next()
    assert response is not None
    document = json.loads(response.body)
    assert [choice["message"]["content"] for choice in document["choices"]] == ["a", "b", "c"]
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"]["completion_tokens"] == 6
    assert document["usage"]["prompt_tokens"] == 9


def test_several_choices_of_a_stream() -> None:
    """Each has a role and an end of its own; the stream ends once."""
    responder = completion(n=2, stream=True, stream_options={"include_usage": True}).responder
    events = [
        _choice(0, EventKind.PART, "a"),
        _choice(1, EventKind.PART, "x"),
        _choice(1, EventKind.CHOICE, ""),
        _choice(0, EventKind.LAST, "b"),
    ]
    *got, last = chunks(b"".join(map(responder.piece, events)))
    shown = [(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in got]
    assert shown == [
        (0, {"role": "assistant", "content": "a"}),
        (1, {"role": "assistant", "content": "x"}),
        (1, {}),
        (0, {"content": "b"}),
        (0, {}),
    ]
    assert last["usage"]["completion_tokens"] == 4


def test_a_session_has_one_reply() -> None:
    """The error names the field."""
    status, body = completion(n=2, session_id="s").refusal
    assert (status, body["error"]["param"]) == (400, "n")
