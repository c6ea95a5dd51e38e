"""One soak from its beginning to its end: the server, the phases, the users, the look at what is left.

Owns the order of things. A failure never ends a soak: it is counted, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.progress import Progress
from tests.e2e.server import profile_server
from tests.e2e.speak import Speaker
from tests.soak.acts import acts_of
from tests.soak.killer import Killer
from tests.soak.leaks import Snapshot, leaks, temporary_folder, unsettled
from tests.soak.plan import PHASES, Budget, Phase, Plan, server_settings
from tests.soak.replay import replay, some_of
from tests.soak.tally import Tally, Wrong
from tests.soak.user import Shared, User
from ts_stateful.client import connect
from ts_stateful.protocol.profile import Profile

__all__ = ["Outcome", "soak"]

_TICK_S = 0.5
_GOING_S = 60.0  # for what is on its way out: a leak stays
_MAX_SHOWN = 20  # failures, while it runs


@dataclass
class Outcome:
    """What a soak has found; `leaks` by phase."""

    plan: Plan
    tally: Tally
    minutes: float = 0.0
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    leaks: dict[str, list[str]] = field(default_factory=dict)
    num_compared: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing has failed, and nothing is left."""
        return not self.tally.num_failures and not any(self.leaks.values())


def soak(plan: Plan, folder: Path, progress: Progress) -> Outcome:
    """Runs a plan on a server of its own; its archive, its store and its engines' logs are in the empty folder `folder`."""
    outcome, began_at = Outcome(plan, Tally()), time.monotonic()
    store = folder / "store"
    settings = server_settings(plan, store)
    server = profile_server(Profile(plan.profile), folder, name="soak", **settings)
    with contextlib.ExitStack() as stack:
        with progress.stage("starting TorchServe"):
            stack.enter_context(server)
        shared = Shared(server, plan, outcome.tally)
        speaker = Speaker(server)
        stack.callback(speaker.http.close)
        for phase in PHASES:
            with progress.stage(phase.name):
                _Round(shared, phase, progress).run()
                _look(outcome, shared, phase, speaker, store)
        outcome.num_compared = shared.answers.num_compared
        for log in temporary_folder(server).rglob("engine-*.log"):  # which goes with the server
            shutil.copy(log, folder)
    outcome.minutes = round((time.monotonic() - began_at) / 60, 1)
    return outcome


class _Round:
    """One phase of load, up to the end of its last session."""

    def __init__(self, shared: Shared, phase: Phase, progress: Progress) -> None:
        self._shared = shared
        self._plan = shared.plan
        self._tally = shared.tally
        self._tally.phase = phase.name
        self._phase = phase
        self._progress = progress
        self._shown = len(shared.tally.failures)

    def run(self) -> None:
        """Has all users act at the same time, and then some of what was said once more."""
        self._shared.finished.clear()
        budget = self._plan.budget_of(self._phase)
        self._progress.expect(round(budget.amount))
        with self._killer(budget), ThreadPoolExecutor(self._plan.users) as pool:
            users = [pool.submit(self._use, number, budget) for number in range(self._plan.users)]
            self._watch(budget, lambda: not wait(users, _TICK_S).not_done)
        for user in users:
            user.result()  # what a user raises is a defect of the soak
        self._replay()

    def _killer(self, budget: Budget) -> contextlib.AbstractContextManager[object]:
        if not self._phase.kills:
            return contextlib.nullcontext()
        return Killer(self._shared, budget, self._plan.num_kills)

    def _use(self, number: int, budget: Budget) -> None:
        with User(self._shared, number) as user:
            user.run(budget, acts_of(self._plan.profile))

    def _watch(self, budget: Budget, over: Callable[[], bool]) -> None:
        shown = 0
        while not over():
            for _ in range(shown, round(budget.used)):
                self._progress.step(self._counts())
            shown = round(budget.used)
            self._show_failures()
        self._show_failures()

    def _counts(self) -> str:
        tally = self._tally
        return (
            f"{tally.total('acts'):,} acts, {tally.counts('tokens').get('generated', 0):,} tokens, "
            f"{tally.total('errors asked for'):,} errors asked for, {tally.total('kills')} kills, "
            f"{tally.num_failures} failures"
        )

    def _show_failures(self) -> None:
        for failure in self._tally.failures[self._shown : _MAX_SHOWN]:
            self._progress.say(
                f"  failure in '{failure.during}' of {failure.talk}: {failure.error}: {failure.what}"
            )
        self._shown = len(self._tally.failures)

    def _replay(self) -> None:
        chosen = some_of(
            self._shared.finished, self._plan.replays, f"{self._plan.seed} {self._phase.name}"
        )
        self._progress.expect(len(chosen))
        with connect(self._shared.server.http_url) as server:
            for talk in chosen:
                with self._counted(talk.name):
                    replay(self._shared, talk, server)
                self._progress.step("once more, undisturbed")
        self._show_failures()
        self._progress.say(f"      {self._counts()}")

    @contextlib.contextmanager
    def _counted(self, talk: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._tally.fail("replay", talk, error)


def _look(outcome: Outcome, shared: Shared, phase: Phase, speaker: Speaker, store: Path) -> None:
    """Waits until the server is quiet, and compares it with what it was behind the first phase."""
    tally = outcome.tally
    if found := unsettled(speaker):
        tally.fail("waiting for quiet", "", Wrong(f"the server does not rest: {'; '.join(found)}"))
    num_kills, deadline = tally.total("kills"), time.monotonic() + _GOING_S
    while True:
        snapshot = outcome.snapshots[phase.name] = Snapshot.take(shared.server, speaker, store)
        before = outcome.snapshots[PHASES[0].name]
        found = leaks(before, snapshot, left=shared.left, num_kills=num_kills)
        if not found or time.monotonic() > deadline:
            break
        time.sleep(_TICK_S)
    outcome.leaks[phase.name] = found
    # Nothing is lost, full or down where nothing is killed.
    for name, count in tally.counts("repeated requests").items():
        if name.startswith(phase.name) and not phase.kills:
            tally.fail("requests", "", Wrong(f"{count} had to be repeated: {name}"))
