"""How much of what a soak does, and the settings of the server that it is done to.

Owns the numbers. Knows nothing of how they are used.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["DEADLINE_S", "PHASES", "QUICK", "Budget", "Phase", "Plan", "server_settings"]


@dataclass(frozen=True)
class Phase:
    """A part of the load, behind which the server has to become quiet; `share` is that of the whole load."""

    name: str
    share: float
    kills: bool = False


PHASES: Final = (
    Phase("warm-up", 0.15),  # what is there behind it is what the others are compared with
    Phase("calm", 0.35),
    Phase("kills", 0.5, kills=True),
)


@dataclass(frozen=True)
class Plan:
    """One soak: so many minutes of load or, where `acts` is not 0, so many acts, however long they take."""

    seed: int
    minutes: float = 10.0
    acts: int = 0
    profile: str = "continuous"
    users: int = 8
    talks: int = 6  # of a user at the same time
    kills: int = 0  # 0: one in every `KILL_EVERY_S` of the phase with kills
    replays: int = 40  # conversations of each phase that are held once more

    def budget_of(self, phase: Phase, clock: Callable[[], float] = time.monotonic) -> Budget:
        """What a phase may take."""
        if self.acts:
            return Budget("acts", round(self.acts * phase.share), clock)
        return Budget("s", 60 * self.minutes * phase.share, clock)

    @property
    def num_kills(self) -> int:
        """How many there are in the phase with kills."""
        return self.kills or max(1, round(60 * self.minutes * PHASES[-1].share / KILL_EVERY_S))


KILL_EVERY_S: Final = 20.0
DEADLINE_S: Final = 120.0  # for every request, also while an engine restarts on a busy machine
QUICK: Final = Plan(seed=1, acts=300, users=6, talks=4, kills=2, replays=4)
"""As a test: by the number of acts, so that a slow machine does the same in more time."""


class Budget:
    """What is left of a phase, in seconds or in acts. For all users together: any thread may ask."""

    def __init__(self, unit: str, amount: float, clock: Callable[[], float]) -> None:
        self.unit = unit
        self.amount = amount
        self._clock = clock
        self._began_at = clock()
        self._lock = threading.Lock()
        self._acts = 0

    def take(self) -> bool:
        """Whether there is enough for one more act."""
        with self._lock:
            if self.share >= 1.0:
                return False
            self._acts += 1
            return True

    @property
    def used(self) -> float:
        """Seconds or acts, at most `amount`."""
        used = self._acts if self.unit == "acts" else self._clock() - self._began_at
        return min(self.amount, used)

    @property
    def share(self) -> float:
        """How much is used, from 0 to 1."""
        return self.used / self.amount


def server_settings(plan: Plan, store: Path) -> dict[str, Any]:
    """Settings that differ from those of the repository's model-config.yaml: less of everything, so that it is used up."""
    return {
        "maxNumSequence": 4 * plan.users * plan.talks,
        "handler": {
            "reattachSec": 0.5,
            "restartDeadlineSec": DEADLINE_S,
            # Less than the open conversations of a full soak come to, and more than those that are under way: idle ones are
            # evicted all the time, and nobody is refused.
            "deviceCacheBytes": 350_000 * plan.users * plan.talks,
            "sharedCacheBytes": 200_000,
            "store": {"url": store.as_uri()},
        },
    }


def replaced(plan: Plan, **fields: Any) -> Plan:
    """The plan with other numbers, where they are not None."""
    said = {name: value for name, value in fields.items() if value is not None}
    return dataclasses.replace(plan, **said)
