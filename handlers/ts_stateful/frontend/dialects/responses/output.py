"""The output items of a response, and the events of a stream that builds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ts_stateful.frontend.dialects.openai_responder import scored
from ts_stateful.frontend.dialects.responder import EngineAnswer
from ts_stateful.frontend.dialects.responses.ids import ResponseId
from ts_stateful.protocol.answers import Logprob
from ts_stateful.protocol.chat import ToolCall

__all__ = ["OutputItems", "StreamEvent"]

StreamEvent = dict[str, Any]
"""An event of a stream, without its number."""


class OutputItems:
    """The items of one response, from the pieces of its reply in their order.

    Each method yields the events of a stream (https://www.openresponses.org/specification).
    """

    def __init__(self, response: ResponseId) -> None:
        self.items: list[dict[str, Any]] = []
        self._response = response
        self._open = ""  # the type of the last item while more can follow in it

    def feed(self, piece: EngineAnswer) -> Iterator[StreamEvent]:
        """Add a piece of the reply."""
        if piece.reasoning:
            yield from self._begin("reasoning")
            yield from self._add("reasoning_text", piece.reasoning)
        if piece.text:
            yield from self._begin("message")
            yield from self._add("output_text", piece.text, piece.logprobs)
        elif piece.logprobs and self._open == "message":  # of tokens whose text came before
            self.items[-1]["content"][0]["logprobs"] += map(scored, piece.logprobs)
        for call in piece.tool_calls:
            yield from self._close()
            yield from self._call(call)

    def end(self, finish_reason: str | None, *, forced_empty: bool) -> Iterator[StreamEvent]:
        """End the reply. One without any item gets an empty message if it is `forced_empty`."""
        if not self.items and forced_empty:
            yield from self._begin("message")
        yield from self._close("completed" if finish_reason == "stop" else "incomplete")

    def _close(self, status: str = "completed") -> Iterator[StreamEvent]:
        """End the last item, if more can follow in it."""
        if not self._open:
            return
        part, place = self.items[-1]["content"][0], self._place_of_part()
        self._open = ""
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        yield {"type": f"response.{part['type']}.done", **place, "text": part["text"], **logprobs}
        yield {"type": "response.content_part.done", **place, "part": part}
        yield self._ended(status)

    def _begin(self, kind: str) -> Iterator[StreamEvent]:
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        if kind == "message":
            item: dict[str, Any] = {
                "type": kind,
                "id": self._id("msg"),
                "status": "in_progress",
                "role": "assistant",
            }
            part: dict[str, Any] = {
                "type": "output_text",
                "text": "",
                "annotations": [],
                "logprobs": [],
            }
        else:
            item = {"type": kind, "id": self._id("rs"), "summary": []}
            part = {"type": "reasoning_text", "text": ""}
        self.items.append({**item, "content": []})
        yield self._item_event("added")
        self.items[-1]["content"] = [part]
        place = self._place_of_part()
        yield {"type": "response.content_part.added", **place, "part": dict(part)}

    def _add(
        self, kind: str, text: str, logprobs: Sequence[Logprob] | None = None
    ) -> Iterator[StreamEvent]:
        part, place = self.items[-1]["content"][0], self._place_of_part()
        part["text"] += text
        event: StreamEvent = {"type": f"response.{kind}.delta", **place, "delta": text}
        if kind == "output_text":
            event["logprobs"] = list(map(scored, logprobs or ()))
            part["logprobs"] += event["logprobs"]
        yield event

    def _call(self, call: ToolCall) -> Iterator[StreamEvent]:
        named = {"id": self._id("fc"), "call_id": call.id, "name": call.name}
        item = {"type": "function_call", **named, "arguments": "", "status": "in_progress"}
        self.items.append(item)
        place = self._place()
        yield self._item_event("added")
        item["arguments"] = call.arguments
        kind = "response.function_call_arguments"
        yield {"type": f"{kind}.delta", **place, "delta": call.arguments}
        yield {"type": f"{kind}.done", **place, "name": call.name, "arguments": call.arguments}
        yield self._ended()

    def _id(self, kind: str) -> str:
        return self._response.item(kind, len(self.items))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _place_of_part(self) -> dict[str, Any]:
        return {**self._place(), "content_index": 0}

    def _ended(self, status: str = "completed") -> StreamEvent:
        if "status" in self.items[-1]:
            self.items[-1]["status"] = status
        return self._item_event("done")

    def _item_event(self, name: str) -> StreamEvent:
        number, item = len(self.items) - 1, dict(self.items[-1])
        return {"type": f"response.output_item.{name}", "output_index": number, "item": item}
