"""Dialogues with the trained text model by `llama-server`, timed by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from transformers import AutoTokenizer

from benchmarks.clients.http_stream import HttpConnection
from benchmarks.model import ASSISTANT, BEGIN, END, USER
from benchmarks.text_model.held_out import MODEL, HeldOut, Said
from ts_stateful.serving.ports import HOST

__all__ = ["talk"]


def talk(port: int, dialogues: Sequence[HeldOut]) -> Said:
    """Hold dialogues one after the other with the server at a port."""
    connection = HttpConnection(HOST, port)
    replies, timings = [], []
    with contextlib.closing(connection):
        for number, dialogue in enumerate(dialogues):
            ids = _ids(BEGIN)
            for prompt in dialogue.prompts:
                ids += _ids(USER + prompt + END + ASSISTANT)
                answer = _ask(connection, ids, dialogue, number)
                ids += answer["tokens"]
                if ids[-1:] != _ids(END):
                    ids += _ids(END)
                replies.append(_tokenizer().decode(answer["tokens"], skip_special_tokens=True))
                timings.append(answer["timings"])

    def total(name: str) -> float:
        return float(sum(timing.get(name, 0) for timing in timings))

    return Said(
        replies,
        int(total("predicted_n")) - len(timings),
        total("predicted_ms") / 1000,
        int(total("draft_n")),
        int(total("draft_n_accepted")),
    )


def _ask(
    connection: HttpConnection, ids: list[int], dialogue: HeldOut, seed: int
) -> dict[str, Any]:
    request = {
        "prompt": ids,
        "n_predict": dialogue.max_new_tokens,
        "id_slot": 0,
        "cache_prompt": True,
        "temperature": dialogue.temperature,
        "samplers": ["temperature"],
        "seed": seed,
        "return_tokens": True,
    }
    connection.renew()
    _, body = connection.post("/completion", msgspec.json.encode(request), {})
    answer: dict[str, Any] = msgspec.json.decode(body)
    return answer


def _ids(text: str) -> list[int]:
    ids: list[int] = _tokenizer()(text, add_special_tokens=False).input_ids
    return ids


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)
