"""Measurements of an engine in this process: decoding, a resumed session, states on their way back.

Every time ends when the host has the result, so no work is pending when a clock is read.
"""

from __future__ import annotations

import secrets
import time

import torch

from benchmarks.driver import Driver
from benchmarks.inputs import Inputs, text_of
from ts_stateful.protocol.requests import Close, Open, Prompt

__all__ = ["Bench", "num_read"]

_WARM_UP = 4  # steps
_PROMPT = 8  # tokens before the steps that are timed


def num_read(history: int, num_steps: int) -> float:
    """Return the tokens of a session that a step of `decode_ms` reads: the mean of so many steps."""
    return history + _PROMPT + _WARM_UP + num_steps / 2


class Bench:
    """Sessions of `history` tokens, an image among them, on the driver's engine, which is on `device`."""

    def __init__(self, driver: Driver, device: torch.device, history: int) -> None:
        self._driver = driver
        self._device = device
        self._history = history
        self._inputs = Inputs()
        self._picture = self._inputs.picture()

    def decode_ms(self, num_rows: int, num_steps: int) -> float:
        """Return the time of a step of so many sessions, each with its history: the mean of `num_steps`."""
        sessions = [self._open() for _ in range(num_rows)]
        requests = [
            self._driver.submit(
                Prompt(
                    session_id=session,
                    prompt=text_of(self._inputs.prompt(_PROMPT)),
                    max_new_tokens=_WARM_UP + num_steps + num_rows + 64,
                    ignore_eos=True,
                    stream=True,
                )
            )
            for session in sessions
        ]
        self._driver.run_until(lambda: self._driver.begun_at.keys() >= set(requests))
        for _ in range(_WARM_UP):
            self._driver.engine.step()
        begin = time.perf_counter()
        for _ in range(num_steps):
            self._driver.engine.step()
        taken_s = time.perf_counter() - begin
        assert self._driver.answers.keys().isdisjoint(requests), "a turn ended too early"
        for session in sessions:
            self._driver.ask(Close(session_id=session))
        return 1000 * taken_s / num_steps

    def first_token_ms(self, num_new: int, *, from_host: bool) -> float:
        """Return the time from a prompt of `num_new` tokens to its reply's first token, in a session with history."""
        session = self._open()
        if from_host:
            self._driver.engine.table.get(session).state.to_host()
            self._wait()
        prompt = text_of(self._inputs.prompt(num_new))
        begin = time.perf_counter()
        request = self._driver.submit(
            Prompt(
                session_id=session, prompt=prompt, max_new_tokens=2, ignore_eos=True, stream=True
            )
        )
        self._driver.wait(request)
        self._driver.ask(Close(session_id=session))
        return 1000 * (self._driver.begun_at[request] - begin)

    def restore_ms(self) -> float:
        """Return the time that the states of a session take from host memory."""
        session = self._open()
        context = self._driver.engine.table.get(session).state
        context.to_host()
        self._wait()
        begin = time.perf_counter()
        context.to_device()
        self._wait()
        taken_s = time.perf_counter() - begin
        self._driver.ask(Close(session_id=session))
        return 1000 * taken_s

    def clear(self) -> None:
        """Close sessions of a failed sample, whose turns would slow down the next one."""
        for session in list(self._driver.engine.table):
            self._driver.ask(Close(session_id=session.session_id))

    def _open(self) -> str:
        """Open a session of `history` tokens."""
        session = secrets.token_hex(8)
        self._driver.ask(
            Open(session_id=session), creates_session=True, attachments=(self._picture,)
        )
        table = self._driver.engine.table
        missing = self._history - len(table.get(session).state.log)
        prompt = text_of(self._inputs.prompt(missing - 1))
        self._driver.ask(
            Prompt(session_id=session, prompt=prompt, max_new_tokens=1, ignore_eos=True)
        )
        return session

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
