"""An engine in this process, and what is measured of it: decoding, a resumed session, states on their way back.

Owns how the engine is driven: as its process does it, without a socket and a server. Every time ends when the host has what it
asked for, so nothing is still under way when a clock is read.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import torch

from benchmarks.inputs import Inputs, text_of
from ts_stateful.config import Config
from ts_stateful.engine.engine import Engine
from ts_stateful.engine.model import Model
from ts_stateful.events import Event, EventKind, Submit
from ts_stateful.media.fetch import Fetcher
from ts_stateful.media.load import MediaLoader
from ts_stateful.protocol import Close, Open, Prompt, Request

__all__ = ["Bench"]

_WARM_UP = 4  # steps


class Bench:
    """Sessions of `history` tokens, an image among them, on one engine; a context manager."""

    def __init__(self, model: Model, config: Config, history: int) -> None:
        self._device = model.device
        self._history = history
        self._inputs = Inputs()
        self._picture = self._inputs.picture()
        self._ids = (str(number) for number in itertools.count())
        self._answers: dict[str, dict[str, Any]] = {}
        self._begun_at: dict[str, float] = {}
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(1)
        media = config.handler.media
        self._engine = Engine(
            model,
            config,
            emit=self._take,
            load_images=MediaLoader(media, Fetcher(media)).load,
            executor=self._threads,
            post=self._posted.put,
        )

    def decode_ms(self, num_rows: int, num_steps: int) -> float:
        """A step of so many sessions, each with its history: the mean of `num_steps`."""
        sessions = [self._open() for _ in range(num_rows)]
        requests = [
            self._submit(
                Prompt(
                    session_id=session,
                    prompt=text_of(self._inputs.prompt(8)),
                    max_new_tokens=_WARM_UP + num_steps + num_rows + 64,
                    ignore_eos=True,
                    stream=True,
                )
            )
            for session in sessions
        ]
        while not all(request in self._begun_at for request in requests):
            self._step()
        for _ in range(_WARM_UP):
            self._engine.step()
        begin = time.perf_counter()
        for _ in range(num_steps):
            self._engine.step()
        taken_s = time.perf_counter() - begin
        assert not any(request in self._answers for request in requests), "a turn ended too early"
        for session in sessions:
            self._ask(Close(session_id=session))
        return 1000 * taken_s / num_steps

    def first_token_ms(self, num_new: int, *, from_host: bool) -> float:
        """From a prompt of `num_new` tokens to the first token of its reply, in a session that has its history."""
        session = self._open()
        if from_host:
            self._engine.table.get(session).state.to_host()
            self._wait()
        prompt = text_of(self._inputs.prompt(num_new))
        begin = time.perf_counter()
        request = self._submit(
            Prompt(
                session_id=session, prompt=prompt, max_new_tokens=2, ignore_eos=True, stream=True
            )
        )
        self._run(request)
        self._ask(Close(session_id=session))
        return 1000 * (self._begun_at[request] - begin)

    def restore_ms(self) -> float:
        """How long the states of a session take from host memory."""
        session = self._open()
        context = self._engine.table.get(session).state
        context.to_host()
        self._wait()
        begin = time.perf_counter()
        context.to_device()
        self._wait()
        taken_s = time.perf_counter() - begin
        self._ask(Close(session_id=session))
        return 1000 * taken_s

    def _open(self) -> str:
        """A session of `history` tokens."""
        session = f"s{next(self._ids)}"
        self._ask(Open(session_id=session), opens=True, attachments=(self._picture,))
        table = self._engine.table
        missing = self._history - len(table.get(session).state.log)
        prompt = text_of(self._inputs.prompt(missing - 1))
        self._ask(Prompt(session_id=session, prompt=prompt, max_new_tokens=1, ignore_eos=True))
        return session

    def _ask(self, command: Request, **fields: Any) -> dict[str, Any]:
        return self._run(self._submit(command, **fields))

    def _submit(self, command: Request, **fields: Any) -> str:
        request = f"r{next(self._ids)}"
        self._engine.submit(Submit(request, command, **fields))
        return request

    def _run(self, request: str) -> dict[str, Any]:
        while request not in self._answers:
            self._step()
        return self._answers[request]

    def _step(self) -> None:
        while not (self._posted.empty() and self._engine.busy):
            self._posted.get()()
        self._engine.step()

    def _take(self, event: Event) -> None:
        if event.kind is EventKind.ACCEPTED:
            return
        if event.num_chars:
            self._begun_at.setdefault(event.request_id, time.perf_counter())
        if event.kind is EventKind.LAST:
            answer = msgspec.json.decode(event.body)
            if "error" in answer:
                raise RuntimeError(answer["error"]["message"])
            self._answers[event.request_id] = answer

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
