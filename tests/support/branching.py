"""Sessions that are forked and rewound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, REWRITING, llama
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Fork, Rewind

__all__ = [
    "MAKERS",
    "NEW_TOKENS",
    "QUESTIONS",
    "cached",
    "check",
    "code",
    "fork",
    "log_of",
    "opened",
    "rewind",
    "say",
]

QUESTIONS = ("What color is the circle?", "And the square?", "Tell me a story, äöü 🙂, please.")
NEW_TOKENS = 12
MAKERS: dict[str, Callable[[], Model]] = {**MODELS, "rewriting": lambda: llama(REWRITING)}


def opened(model: Model, **config: object) -> Harness:
    harness = Harness(model, dict(config))
    pictures = [noise(1), noise(2, 80, 30)] if model.encoder else []
    assert "error" not in harness.open("s", pictures, metadata={"user": 7})
    return harness


def say(harness: Harness, session_id: str, text: str, **fields: Any) -> dict[str, Any]:
    return harness.prompt(session_id, text, **{"max_new_tokens": NEW_TOKENS, **fields})


def check(harness: Harness, session_id: str) -> None:
    reference_reply(harness.model, harness, session_id, NEW_TOKENS)


def fork(harness: Harness, name: str, source: str = "s", **fields: Any) -> dict[str, Any]:
    return harness.ask(Fork(session_id=source, new_session_id=name, **fields), creates_session=True)


def rewind(harness: Harness, to_turn: int, session_id: str = "s") -> dict[str, Any]:
    return harness.ask(Rewind(session_id=session_id, to_turn=to_turn))


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def code(document: dict[str, Any]) -> str:
    return str(document["error"]["code"])


def log_of(harness: Harness, session_id: str = "s") -> list[int]:
    return list(harness.engine.table.get(session_id).state.log)
