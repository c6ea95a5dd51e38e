"""An engine of a very small text model with many open sessions, without a server."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.driver import Driver
from benchmarks.inputs import Inputs, text_of
from benchmarks.model import CONTEXT, NUM_SPECIAL, VOCABULARY, build_tokenizer
from ts_stateful.config.schema import load_config
from ts_stateful.language.network.load import load_model
from ts_stateful.protocol.requests import Close, Open, Prompt, Rewind

__all__ = ["CrowdedEngine"]

_ASKED = 10  # sessions that take turns; the others are idle
# The states of a session that has just been opened fill their memory, which comes in grains of 16 tokens.
_OPENING_TOKENS, _PROMPT_TOKENS, _NEW_TOKENS = 29, 20, 16
_IDLE_MS = 36_000_000


class CrowdedEngine:
    """An engine that this process drives, of a model of less than a million weights, so that the sessions' cost is seen."""

    def __init__(self, folder: Path, most: int) -> None:
        torch.set_num_threads(1)
        handler = {"model": str(_build(folder)), "threads": 1, "speculation": False}
        settings = {"maxNumSequence": most, "sequenceMaxIdleMSec": _IDLE_MS, "handler": handler}
        config = load_config(settings)
        model = load_model(config.handler, folder, torch.device("cpu"))
        self._driver = Driver(model, config)
        self._inputs = Inputs()
        self._num_open = 0

    def grow(self, num_open: int) -> list[float]:
        """Open sessions, with a turn each, until so many are open; return the milliseconds that each took."""
        taken = []
        for number in range(self._num_open, num_open):
            began = time.perf_counter()
            self._driver.ask(Open(session_id=_name(number)), creates_session=True)
            self._turn(number, _OPENING_TOKENS, 4)
            taken.append(1000 * (time.perf_counter() - began))
        self._num_open += len(taken)
        return taken

    def shrink(self, num_open: int) -> None:
        """Close the last sessions until so many are open."""
        for number in range(num_open, self._num_open):
            self._driver.ask(Close(session_id=_name(number)))
        self._num_open = min(num_open, self._num_open)

    def memory(self) -> int:
        """Return the bytes of memory of this process beyond the states of its sessions."""
        gc.collect()
        states = sum(session.state.kv.num_bytes for session in self._driver.engine.table)
        return int(psutil.Process().memory_info().rss) - states

    def ask(self, times: int) -> tuple[float, float]:
        """Return the medians of the time to first token and of a step, in milliseconds, of so many turns."""
        first, steps = [], []
        for number in range(times):
            began = time.perf_counter()
            begun_at, ended_at = self._turn(number % _ASKED, _PROMPT_TOKENS, _NEW_TOKENS)
            first.append(1000 * (begun_at - began))
            steps.append(1000 * (ended_at - begun_at) / (_NEW_TOKENS - 1))
            self._driver.ask(Rewind(session_id=_name(number % _ASKED), to_turn=1))
        return statistics.median(first), statistics.median(steps)

    def _turn(self, number: int, num_tokens: int, max_new_tokens: int) -> tuple[float, float]:
        driver = self._driver
        prompt = Prompt(
            session_id=_name(number),
            prompt=text_of(self._inputs.prompt(num_tokens)),
            max_new_tokens=max_new_tokens,
            ignore_eos=True,
            stream=True,
        )
        request = driver.submit(prompt)
        driver.wait(request)
        begun_at, ended_at = driver.begun_at[request], time.perf_counter()
        for kept in (driver.begun_at, driver.pieces, driver.answers):
            kept.clear()
        return begun_at, ended_at


def _name(number: int) -> str:
    return f"session-{number}"


def _build(folder: Path) -> Path:
    """Write the model into a folder, and return it."""
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        network.lm_head.weight[:NUM_SPECIAL] = 0
    network.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
