"""Streams of responses: events that do not depend on the pieces that an engine sends."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.open_responses import check_event, check_response
from ts_stateful.clock import SYSTEM_CLOCK
from ts_stateful.frontend.dialects.openai_fields import FieldFilter
from ts_stateful.frontend.dialects.responses.items import read_items
from ts_stateful.frontend.dialects.responses.request import read_create
from ts_stateful.frontend.dialects.responses.responder import CreatedResponder, StreamResponder
from ts_stateful.protocol.answers import (
    Logprob,
    ReplyDetails,
    Timing,
    TurnAnswer,
    TurnPart,
    Usage,
    encode,
)
from ts_stateful.protocol.chat import ToolCall
from ts_stateful.protocol.errors import OutOfMemory
from ts_stateful.protocol.events import Event, EventKind

NOTE = read_create({"input": "hi"}, "chat", SYSTEM_CLOCK, strict=False).note
THOUGHT, TEXT = "I have to look.", "It is röd, 红 and 🙂."
USAGE = Usage(9, 2, completion_tokens_details=ReplyDetails(1))
CALLS = (ToolCall("c1", "count", "{}"), ToolCall("c2", "count", '{"a": 1}'))


def event(kind: EventKind, body: bytes = b"", status: int = 200) -> Event:
    return Event("r", kind, body, status, session_id="s", turn=3)


def read(
    pieces: list[TurnPart], after: int = -1, last: Event | None = None
) -> list[dict[str, Any]]:
    """The events of a stream in these pieces."""
    responder = StreamResponder(NOTE, None, starting_after=after)
    answer = TurnAnswer(text="", session_id="s", turn=3, finish_reason="stop", usage=USAGE)
    stream = responder.piece(event(EventKind.ACCEPTED))
    stream += b"".join(responder.piece(event(EventKind.PART, encode(one))) for one in pieces)
    stream += responder.piece(last or event(EventKind.LAST, encode(answer)))
    *blocks, done, nothing = stream.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    events = [json.loads(block.partition("\ndata: ")[2]) for block in blocks]
    for one in events:
        check_event(one)
    return events


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(place % len(text) for place in places)})
    return [text[start:stop] for start, stop in pairwise(marks)]


def pieces_of(places: list[int]) -> list[TurnPart]:
    """One reply, with its texts cut at these places."""
    return [
        *(TurnPart("", reasoning=part) for part in cut(THOUGHT, places)),
        *(TurnPart(part) for part in cut(TEXT, places)),
        *(TurnPart("", tool_calls=(call,)) for call in CALLS),
    ]


WHOLE = read(pieces_of([]))


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with each delta's characters one by one, so that streams in other pieces are equal."""
    made = []
    for one in events:
        text = one.get("delta") if "arguments" not in one["type"] else None
        if text is None:
            made.append(one)
            continue
        first = one["sequence_number"] - len(text) + 1
        made += [
            {**one, "delta": char, "sequence_number": first + at} for at, char in enumerate(text)
        ]
    return made


@given(st.lists(st.integers(0, 100), max_size=6), st.integers(-1, 80))
def test_numbers_do_not_depend_on_the_pieces(places: list[int], after: int) -> None:
    """A stream from any of its events on has what follows it, and nothing else."""
    expected = [one for one in joined(WHOLE) if one["sequence_number"] > after]
    assert joined(read(pieces_of(places), after)) == expected


def test_numbers_are_without_gaps_if_characters_count() -> None:
    """From 0 on."""
    assert [one["sequence_number"] for one in joined(WHOLE)] == list(range(len(joined(WHOLE))))


def test_reasoning_has_the_events_that_clients_know() -> None:
    """By OpenAI's names."""
    kinds = {one["type"] for one in WHOLE if "reasoning" in one["type"]}
    assert kinds == {"response.reasoning_text.delta", "response.reasoning_text.done"}


def test_items_in_their_order() -> None:
    """Reasoning, the message and the calls; each begins and ends, and the last event has all of them."""
    kinds = [one["item"]["type"] for one in WHOLE if one["type"] == "response.output_item.done"]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    response = WHOLE[-1]["response"]
    check_response(response)
    assert response["id"] == "resp_s_3"
    assert [item["type"] for item in response["output"]] == kinds
    assert response["output"][0]["content"][0]["text"] == THOUGHT
    assert response["output"][1]["content"][0]["text"] == TEXT
    assert [item["call_id"] for item in response["output"][2:]] == ["c1", "c2"]
    assert response["usage"]["total_tokens"] == 11
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 1}


def test_a_reply_without_text_is_an_empty_message() -> None:
    """A client finds its text, which is empty."""
    (item,) = read([])[-1]["response"]["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_an_engine_that_comes_back_does_not_begin_again() -> None:
    """It accepts the request a second time."""
    responder = StreamResponder(NOTE, None)
    assert responder.piece(event(EventKind.ACCEPTED))
    assert responder.piece(event(EventKind.ACCEPTED)) == b""


def scored(*tokens: str) -> list[Logprob]:
    return [Logprob(0, text, list(text.encode()), -0.5, 0, ()) for text in tokens]


@pytest.mark.parametrize("reason", ["length", "cancelled"])
@pytest.mark.parametrize("calls", [(), CALLS[:1]])
def test_a_message_that_was_cut_is_incomplete(reason: str, calls: tuple[ToolCall, ...]) -> None:
    """In its own event, at the end of the stream and when it is read again. Calls are complete."""
    fields: dict[str, Any] = {"session_id": "s", "turn": 3, "finish_reason": reason}
    last = event(EventKind.LAST, encode(TurnAnswer(text="", usage=USAGE, **fields)))
    *events, ended = read([TurnPart("It", tool_calls=calls)], last=last)
    done = [one["item"]["status"] for one in events if one["type"].endswith("output_item.done")]
    assert done == (["completed", "completed"] if calls else ["incomplete"])
    assert [item["status"] for item in ended["response"]["output"]] == done
    whole = TurnAnswer(text="It", tool_calls=calls, usage=USAGE, timing=Timing(), **fields)
    answer = CreatedResponder(NOTE, None, {}).whole(event(EventKind.LAST, encode(whole)))
    assert json.loads(answer.body)["output"] == ended["response"]["output"]


def test_log_probabilities_of_a_stream_that_is_read_again() -> None:
    """Those of the rest of a delta. Tokens that come after their text are in the whole."""
    pieces = [
        TurnPart("It is röd", logprobs=scored("It", " is", " röd")),
        TurnPart("", logprobs=scored("!")),
    ]
    events = read(pieces)
    (delta,) = [one for one in events if one["type"] == "response.output_text.delta"]
    tokens = [one["token"] for one in events[-1]["response"]["output"][0]["content"][0]["logprobs"]]
    assert tokens == ["It", " is", " röd", "!"]
    rest = read(pieces, delta["sequence_number"] - 4)[0]
    assert (rest["delta"], [one["token"] for one in rest["logprobs"]]) == (" röd", [" röd"])


def test_items_are_taken_back_as_they_were_sent() -> None:
    """By a strict server too: a client that repeats them names nothing of its own."""
    items = WHOLE[-1]["response"]["output"]
    (reply,) = read_items(items, FieldFilter(strict=True)).messages
    assert (reply.reasoning, reply.parts, reply.tool_calls) == (THOUGHT, (TEXT,), CALLS)


def test_a_late_error_is_a_response_that_failed() -> None:
    """With the code and the message of the error."""
    error = OutOfMemory("no room")
    last = event(EventKind.LAST, encode(error.to_body()), error.status)
    response = read([TurnPart("It")], last=last)[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "out_of_memory", "message": "no room"}
