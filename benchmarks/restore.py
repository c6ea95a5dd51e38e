"""`python -m benchmarks.restore`: time to first token of a session that comes back, by the place of its KV states.

It runs an engine without a server, with the text model of the other benchmarks. The store is a temporary folder, whose files
are in the page cache when they are read. Prints a table of medians.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.driver import Driver
from benchmarks.inputs import Inputs, text_of
from benchmarks.model import TOKEN_BYTES, build
from ts_stateful.config.schema import Config, load_config
from ts_stateful.language.conversation.context import Context, Stored
from ts_stateful.language.network.load import load_model
from ts_stateful.protocol.requests import Close, Open, Prompt
from ts_stateful.store.backends.file import FileStore

__all__ = ["main"]

_HISTORIES: Final = (1600, 3200)
_PROMPT: Final = 20  # tokens
_TIERS: Final = {
    "resident": None,
    "in host memory": "host",
    "in the store": "store",
    "computed again": "replay",
}


class Bench:
    """Sessions that come back, one after the other, on the driver's engine."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._inputs = Inputs()

    def first_token_ms(self, history: int, tier: str) -> float:
        """Return the time from a prompt to the first token, in a session of `history` tokens with states in that tier."""
        session = secrets.token_hex(8)  # the engines share a store
        self._driver.ask(Open(session_id=session), creates_session=True)
        self._ask(session, history - _PROMPT)
        context = self._driver.engine.table.get(session).state
        self._driver.run_until(lambda: context.is_stored)
        _leave(context, tier)
        begin = time.perf_counter()
        request, answer = self._ask(session, _PROMPT)
        if answer["timing"]["restored_from"] != _TIERS[tier]:
            raise RuntimeError(f"{tier}: came from {answer['timing']['restored_from']}")
        self._driver.ask(Close(session_id=session))
        return 1000 * (self._driver.begun_at[request] - begin)

    def _ask(self, session: str, num_tokens: int) -> tuple[str, dict[str, Any]]:
        prompt = text_of(self._inputs.prompt(num_tokens))
        command = Prompt(
            session_id=session, prompt=prompt, max_new_tokens=2, ignore_eos=True, stream=True
        )
        request = self._driver.submit(command)
        return request, self._driver.wait(request)


def _leave(context: Context, tier: str) -> None:
    if tier == "in host memory":
        context.to_host()
    elif tier != "resident":
        context.to_record()
    if tier == "computed again":
        context.stored = Stored()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of every number (default: 5)")
    parser.add_argument(
        "--histories",
        type=int,
        nargs="+",
        default=_HISTORIES,
        metavar="TOKENS",
        help="lengths of the sessions (default: 1600 3200)",
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        _, checkpoint = build(Path(folder))
        configs = {history: _config(checkpoint, history) for history in options.histories}
        settings = configs[options.histories[0]].handler
        model = load_model(settings, checkpoint, torch.device("cpu"))
        store = FileStore(Path(folder) / "store")
        benches = {
            history: Bench(stack.enter_context(Driver(model, config, store)))
            for history, config in configs.items()
        }
        samples: dict[tuple[int, str], list[float]] = {}
        for _ in range(options.rounds):
            for history, tier in itertools.product(options.histories, _TIERS):
                taken_ms = benches[history].first_token_ms(history, tier)
                samples.setdefault((history, tier), []).append(taken_ms)
    sys.stdout.write(_table(samples, options.histories))
    return 0


def _config(checkpoint: Path, history: int) -> Config:
    """Return a configuration with room for little more than one session, so that states reach the store soon."""
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
