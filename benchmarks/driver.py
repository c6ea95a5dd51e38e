"""A language model's engine in this process, driven as its own process drives it, without socket and server."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ts_stateful.config.schema import Config
from ts_stateful.engine.services import Services, WorkQueue
from ts_stateful.language.engine import build_engine
from ts_stateful.language.network.load import Model
from ts_stateful.media.load import MediaLoader
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Request
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import Store
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = ["Driver"]

_PATIENCE_S = 1.0
_THREADS = 4  # they call the store


class Driver:
    """One engine, with a store or without. A context manager: leaving it ends the engine's threads.

    `begun_at` maps request ids to the time of `perf_counter` at the first text of their replies, `pieces` to all their texts.
    """

    def __init__(self, model: Model, config: Config, store: Store | None = None) -> None:
        self.begun_at: dict[str, float] = {}
        self.pieces: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        self.answers: dict[str, dict[str, Any]] = {}
        self._refusal = ""  # the last rejection that was not reported
        self._queue = WorkQueue()
        self._threads = ThreadPoolExecutor(_THREADS)
        access = None if store is None else StoreAccess(store, "required", self._threads)
        calls = None if access is None else StoreCalls(access, self._queue)
        services = Services(self, self._queue, store=calls)
        self.engine = build_engine(model, config, services, MediaLoader(config.handler.media))
        self.engine.kind.tune()

    def submit(self, command: Request, **fields: Any) -> str:
        """Submit a request with the `fields` of `Submit`; return its id, random because engines may share a store."""
        request = secrets.token_hex(8)
        self.engine.submit(Submit(request, command, **fields))
        return request

    def ask(self, command: Request, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request, or the last event of its reply."""
        return self.wait(self.submit(command, **fields))

    def wait(self, request: str) -> dict[str, Any]:
        """Return the answer to a submitted request."""
        self.run_until(lambda: request in self.answers)
        return self.answers[request]

    def run_until(self, done: Callable[[], bool]) -> None:
        """Pass the threads' results to the engine, and step while it has work, until `done`.

        Raises:
            RuntimeError: a request failed.
        """
        while not done():
            if self._refusal:
                refusal, self._refusal = self._refusal, ""
                raise RuntimeError(refusal)
            self._queue.run(patience_s=0.0 if self.engine.busy else _PATIENCE_S)
            self.engine.settle()
            if self.engine.busy:
                self.engine.step()

    def emit(self, event: Event) -> None:
        """Take an event of the engine."""
        if event.num_chars:
            now = time.perf_counter()
            self.begun_at.setdefault(event.request_id, now)
            self.pieces[event.request_id].append((now, msgspec.json.decode(event.body)["text"]))
        if event.kind is EventKind.LAST:
            answer = msgspec.json.decode(event.body)
            if "error" in answer:
                self._refusal = answer["error"]["message"]
            else:
                self.answers[event.request_id] = answer

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
