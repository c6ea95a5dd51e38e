"""The published document of Open Responses, as the types that the package openresponses-types makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from openai import DefaultHttpxClient
from openai.types.responses import (
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
)
from openresponses_types import types
from pydantic import BaseModel

__all__ = ["check_event", "check_response", "events_of", "validating"]


def _kinds(model: type[BaseModel]) -> Iterator[str]:
    annotation = model.model_fields["type"].annotation
    yield from (
        (str(kind.value) for kind in annotation)
        if isinstance(annotation, type)
        else get_args(annotation)
    )


_EVENTS: dict[str, type[BaseModel]] = {
    kind: model
    for name, model in vars(types).items()
    if name.endswith("StreamingEvent")
    for kind in _kinds(model)
} | {
    # Clients and other servers have OpenAI's names here, not the document's.
    "response.reasoning_text.delta": ResponseReasoningTextDeltaEvent,
    "response.reasoning_text.done": ResponseReasoningTextDoneEvent,
}


def check_response(document: dict[str, Any]) -> None:
    """Check a response as it stands."""
    types.ResponseResource.model_validate(document)


def check_event(event: dict[str, Any]) -> None:
    """Check an event of a stream."""
    _EVENTS[event["type"]].model_validate(event)


def events_of(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Read a stream of server-sent events to its end, and check each; its name is that in its data."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line == "data: [DONE]":
            return
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == name
            check_event(event)
            yield event
    raise AssertionError("the stream has no end")


def validating() -> DefaultHttpxClient:
    """A transport for OpenAI's client that checks every answer which is a response."""

    def check(answer: Any) -> None:
        if answer.headers["content-type"] == "application/json" and answer.status_code == 200:
            document = json.loads(answer.read())
            if document.get("object") == "response" and "deleted" not in document:
                check_response(document)

    return DefaultHttpxClient(event_hooks={"response": [check]})
