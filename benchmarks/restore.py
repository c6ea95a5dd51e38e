"""`python -m benchmarks.restore`: the time to the first token of a session that comes back, by where its KV states are.

Owns an engine without a server, with the text model of the other benchmarks and a store in a temporary folder, whose files
are in the page cache when they are read. Prints a table of medians.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from benchmarks.inputs import Inputs, text_of
from benchmarks.model import TOKEN_BYTES, build
from ts_stateful.config import Config, load_config
from ts_stateful.engine.context import Context, Stored
from ts_stateful.engine.engine import Engine
from ts_stateful.engine.model import Model, load_model
from ts_stateful.events import Event, EventKind, Submit
from ts_stateful.protocol import Close, Open, Prompt, Request
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.file import FileStore

__all__ = ["main"]

_HISTORIES: Final = (1600, 3200)
_PROMPT: Final = 20  # tokens
_TIERS: Final = {
    "resident": None,
    "in host memory": "host",
    "in the store": "store",
    "computed again": "replay",
}
_STORE_THREADS: Final = 4


class Bench:
    """One engine with room for hardly more than one session, so that states are in the store soon after their turn."""

    def __init__(self, model: Model, config: Config, folder: Path) -> None:
        self._inputs = Inputs()
        self._ids = (secrets.token_hex(8) for _ in itertools.count())  # the engines share a store
        self._answers: dict[str, dict[str, Any]] = {}
        self._begun_at: dict[str, float] = {}
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(_STORE_THREADS)
        self._engine = Engine(
            model,
            config,
            emit=self._take,
            load_images=lambda *_: [],
            executor=self._threads,
            post=self._posted.put,
            store=StoreAccess(FileStore(folder), "required", self._threads),
        )

    def first_token_ms(self, history: int, tier: str) -> float:
        """From a prompt in a session of `history` tokens, whose states are in that tier, to the first token of its reply."""
        session = f"s{next(self._ids)}"
        self._run(self._submit(Open(session_id=session), opens=True))
        self._ask(session, history - _PROMPT)
        context = self._engine.table.get(session).state
        while not context.is_stored:
            self._posted.get()()
        self._leave(context, tier)
        begin = time.perf_counter()
        request, answer = self._ask(session, _PROMPT)
        if answer["timing"]["restored_from"] != _TIERS[tier]:
            raise RuntimeError(f"{tier}: came from {answer['timing']['restored_from']}")
        self._run(self._submit(Close(session_id=session)))
        return 1000 * (self._begun_at[request] - begin)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()

    def _leave(self, context: Context, tier: str) -> None:
        if tier == "in host memory":
            context.to_host()
        elif tier != "resident":
            context.to_record()
        if tier == "computed again":
            context.stored = Stored()

    def _ask(self, session: str, num_tokens: int) -> tuple[str, dict[str, Any]]:
        prompt = text_of(self._inputs.prompt(num_tokens))
        command = Prompt(
            session_id=session, prompt=prompt, max_new_tokens=2, ignore_eos=True, stream=True
        )
        request = self._submit(command)
        return request, self._run(request)

    def _submit(self, command: Request, **fields: Any) -> str:
        request = f"r{next(self._ids)}"
        self._engine.submit(Submit(request, command, **fields))
        return request

    def _run(self, request: str) -> dict[str, Any]:
        while request not in self._answers:
            while not (self._posted.empty() and self._engine.busy) and request not in self._answers:
                self._posted.get()()
            if self._engine.busy:
                self._engine.step()
        return self._answers[request]

    def _take(self, event: Event) -> None:
        if event.num_chars:
            self._begun_at.setdefault(event.request_id, time.perf_counter())
        if event.kind is EventKind.LAST:
            answer = msgspec.json.decode(event.body)
            if "error" in answer:
                raise RuntimeError(answer["error"]["message"])
            self._answers[event.request_id] = answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of every number (default: 5)")
    parser.add_argument("--histories", type=int, nargs="+", default=_HISTORIES, metavar="TOKENS")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        _, checkpoint = build(Path(folder))
        configs = {history: _config(checkpoint, history) for history in options.histories}
        settings = configs[options.histories[0]].handler
        model = load_model(settings, checkpoint, torch.device("cpu"))
        store = Path(folder) / "store"
        benches = {history: Bench(model, config, store) for history, config in configs.items()}
        samples: dict[tuple[int, str], list[float]] = {}
        for _ in range(options.rounds):
            for history, tier in itertools.product(options.histories, _TIERS):
                taken_ms = benches[history].first_token_ms(history, tier)
                samples.setdefault((history, tier), []).append(taken_ms)
        for bench in benches.values():
            bench.close()
    sys.stdout.write(_table(samples, options.histories))
    return 0


def _config(checkpoint: Path, history: int) -> Config:
    handler = {
        "model": str(checkpoint),
        "deviceCacheBytes": int(1.2 * TOKEN_BYTES * (history + 8)),
        "sharedCacheBytes": 0,
        "streamIntervalSec": 0,
        "store": {"kvSpill": True},
    }
    return load_config({"handler": handler})


def _table(samples: dict[tuple[int, str], list[float]], histories: Sequence[int]) -> str:
    lines = [f"| first token, ms, after | {' | '.join(_TIERS)} |", "|---|" + "---|" * len(_TIERS)]
    for history in histories:
        cells = [f"{statistics.median(samples[history, tier]):.0f}" for tier in _TIERS]
        lines.append(f"| {history} tokens | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
