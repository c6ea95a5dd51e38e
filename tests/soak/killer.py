"""Kills processes of the server while it is used.

Owns when and which. Everybody else only sees that it takes a while: what a client may notice is in `outages`.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from typing import Final

import psutil

from tests.soak.plan import Budget
from tests.soak.user import Shared
from ts_stateful.client import RetryPolicy, connect

__all__ = ["Killer"]

_WAYS: Final = {
    "continuous": ("engine", "worker", "engine", "both"),
    "asgi": ("engine", "worker", "engine", "both"),
    # Here TorchServe itself does not get over the death of its worker.
    "async": ("engine",),
}
_POLL_S = 0.2
_BACK_S = 240.0  # for a server to answer again


class Killer:
    """A thread that kills `count` times within a budget; a context manager that ends it."""

    def __init__(self, shared: Shared, budget: Budget, count: int) -> None:
        rng = random.Random(f"{shared.plan.seed} kills")
        self._shared = shared
        self._budget = budget
        self._shares = [(number + rng.uniform(0.1, 0.7)) / count for number in range(count)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def _run(self) -> None:
        tally, before = self._shared.tally, dict[str, int]()
        for share, what in zip(self._shares, itertools.cycle(_WAYS[self._shared.plan.profile])):
            while self._budget.share < share or not self._answered_since(before):
                if self._stop.wait(_POLL_S):
                    return
            tally.count("kills", what)
            try:
                with tally.timed(f"back after killing {what}"):
                    self._kill(what)
            except Exception as error:
                tally.fail(f"killing {what}", "", error)
            before = self._acts()

    def _answered_since(self, before: dict[str, int]) -> bool:
        """Whether every user has done what was under way, and something else behind it: nobody waits for two engines."""
        now = self._acts()
        return all(now[name] >= count + 2 for name, count in before.items())

    def _acts(self) -> dict[str, int]:
        tally = self._shared.tally
        counts = tally.counts("acts of users").items()
        return {name: count for name, count in counts if name.startswith(tally.phase)}

    def _kill(self, what: str) -> None:
        server, victims = self._shared.server, []
        if what != "worker":
            victims += server.engines()
        if what != "engine":
            (worker,) = server.describe()["workers"]
            victims.append(psutil.Process(int(worker["pid"])))
        outage = self._shared.outages.outage() if what != "engine" else contextlib.nullcontext()
        policy = RetryPolicy(max_retries=1000, max_delay_s=0.5)
        with outage, connect(server.http_url, timeout_s=_BACK_S, policy=policy) as connection:
            for victim in victims:
                victim.kill()
            psutil.wait_procs(victims, timeout=_BACK_S)
            connection.hello()

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
