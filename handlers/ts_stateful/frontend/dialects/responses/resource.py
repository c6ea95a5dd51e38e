"""The object of a response, as it stands: settings of the request, state and output of the turn."""

from __future__ import annotations

from typing import Any

from ts_stateful.frontend.dialects.responder import EngineAnswer
from ts_stateful.frontend.dialects.responses.ids import ResponseId
from ts_stateful.frontend.dialects.responses.note import Note, decode_note
from ts_stateful.frontend.dialects.responses.output import OutputItems
from ts_stateful.protocol.answers import ReplyDetails, Timing, Usage

__all__ = [
    "TurnDocument",
    "failed",
    "finished",
    "listed_items",
    "unfinished",
    "whole",
]


class TurnDocument(EngineAnswer, frozen=True):
    """An engine's answer about a turn."""

    turn: int = 0
    note: str = ""
    earlier: tuple[TurnDocument, ...] = ()
    timing: Timing = Timing()

    @property
    def response(self) -> ResponseId:
        """The turn as a response."""
        return ResponseId(self.session_id or "", self.turn)


def unfinished(response: ResponseId, note: Note) -> dict[str, Any]:
    """Return a response in progress."""
    return _object(response, note, "in_progress", [])


def failed(response: ResponseId, note: Note, error: dict[str, Any]) -> dict[str, Any]:
    """Return a response that failed with this code and message."""
    return {**_object(response, note, "failed", []), "error": error}


def finished(
    response: ResponseId, note: Note, answer: TurnDocument, items: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a response with its output items."""
    cut = answer.finish_reason == "length"
    status = (
        "incomplete" if cut else "cancelled" if answer.finish_reason == "cancelled" else "completed"
    )
    made = _object(response, note, status, items)
    if cut:
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    if status != "cancelled":
        made["completed_at"] = note.created_at + round(answer.timing.total_ms / 1000)
    return {**made, "usage": _usage(answer.usage)}


def whole(document: TurnDocument, note: Note) -> dict[str, Any]:
    """Return the response of a turn as it stands."""
    if document.finish_reason is None:
        return unfinished(document.response, note)
    return finished(document.response, note, document, _output_items(document, note))


def _output_items(document: TurnDocument, note: Note) -> list[dict[str, Any]]:
    """Return the output items of a turn that is complete."""
    output = OutputItems(document.response)
    ended = output.end(document.finish_reason, forced_empty=note.kind == "response")
    for _ in (*output.feed(document), *ended):
        pass
    return output.items


def listed_items(document: TurnDocument, *, with_output: bool) -> list[dict[str, Any]]:
    """Return the items of a turn, those of the input first; none of one whose note was discarded."""
    if not document.note:
        return []
    note = decode_note(document.note)
    items = [
        {**item, "id": document.response.item(_PREFIXES[item["type"]], f"i{index}")}
        for index, item in enumerate(note.items)
    ]
    if with_output and document.finish_reason is not None and note.kind == "response":
        items += _output_items(document, note)
    return items


_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def _object(
    response: ResponseId, note: Note, status: str, items: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": str(response),
        "object": "response",
        "created_at": note.created_at,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        **note.fields,
        "output": items,
        "usage": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    details = usage.completion_tokens_details or ReplyDetails()
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": details.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
