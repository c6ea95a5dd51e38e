"""Dialogues with the trained text model by the engine alone, with drafts and without."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.driver import Driver
from benchmarks.text_model.held_out import HeldOut, Said
from ts_stateful.config.schema import load_config
from ts_stateful.language.network.load import load_model
from ts_stateful.protocol.requests import Close, Open, Prompt

__all__ = ["DialoguesAlone"]


class DialoguesAlone:
    """Two engines that this process drives, one of them with drafts."""

    def __init__(self, model: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._drivers = {drafts: _driver(model, threads, drafts) for drafts in (False, True)}

    def talk(self, dialogues: Sequence[HeldOut], drafts: bool) -> Said:
        """Hold dialogues one after the other, in a new session each."""
        driver = self._drivers[drafts]
        before = driver.engine.stats()
        replies, num_tokens, taken_s = [], 0, 0.0
        for number, dialogue in enumerate(dialogues):
            session = f"session-{number}"
            driver.ask(Open(session_id=session), creates_session=True)
            for prompt in dialogue.prompts:
                request = driver.submit(
                    Prompt(
                        session_id=session,
                        prompt=prompt,
                        max_new_tokens=dialogue.max_new_tokens,
                        temperature=dialogue.temperature,
                        seed=number,
                        stream=True,
                    )
                )
                answer = driver.wait(request)
                taken_s += time.perf_counter() - driver.begun_at[request]
                num_tokens += answer["usage"]["completion_tokens"] - 1
                begun = "".join(text for _, text in driver.pieces[request])
                replies.append(begun + answer["text"])
            driver.ask(Close(session_id=session))
        driver.pieces.clear()
        after = driver.engine.stats()
        return Said(
            replies,
            num_tokens,
            taken_s,
            after.tokens_drafted - before.tokens_drafted,
            after.tokens_accepted - before.tokens_accepted,
        )


def _driver(model: Path, threads: int, drafts: bool) -> Driver:
    handler = {
        "model": str(model),
        "threads": threads,
        "dtype": "float32",
        "speculation": drafts,
    }
    config = load_config({"maxNumSequence": 64, "handler": handler})
    return Driver(load_model(config.handler, model, torch.device("cpu")), config)
