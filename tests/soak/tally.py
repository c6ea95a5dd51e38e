"""What has happened: acts and their latencies, errors that were asked for, and failures, which were not.

Owns the counts. Knows nothing of what is counted. Any thread may count.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from ts_stateful.protocol.errors import StatefulError

__all__ = ["Failure", "Latency", "Tally", "Wrong", "check"]

_MAX_FAILURES = 1000  # that are kept; the others are counted


class Wrong(Exception):
    """The server has done something that it must not."""


def check(condition: bool, what: str) -> None:
    """Raises `Wrong` unless it is so."""
    if not condition:
        raise Wrong(what)


@dataclass(frozen=True)
class Failure:
    """`at` is a time in UTC, `during` the act, and `talk` the conversation with what was done in it before."""

    phase: str
    at: str
    during: str
    talk: str
    error: str
    what: str


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one kind of request in one phase."""

    size: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Tally:
    """Counts of a whole soak, by phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase = ""
        self.num_failures = 0
        self.failures: list[Failure] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def count(self, what: str, name: str, times: int = 1) -> None:
        """One more of the `name`s among what is counted as `what`: acts, expected errors, kills, ..."""
        with self._lock:
            self._counts[what][name] += times

    def counts(self, what: str) -> dict[str, int]:
        """The counts, by name."""
        with self._lock:
            return dict(sorted(self._counts[what].items()))

    def total(self, what: str) -> int:
        """All of them."""
        with self._lock:
            return self._counts[what].total()

    def repeated(self, error: BaseException) -> None:
        """A request is sent again because of this error."""
        code = error.code if isinstance(error, StatefulError) else type(error).__name__
        self.count("repeated requests", f"{self.phase}: {code}")

    @contextlib.contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Times one request, from sending it to the end of its answer; one that fails is not timed."""
        began_at, phase = self._clock(), self.phase
        yield
        with self._lock:
            self._seconds[phase, kind].append(self._clock() - began_at)

    def latencies(self, phase: str) -> dict[str, Latency]:
        """Of the requests that began in that phase, by kind."""
        with self._lock:
            found = {kind: sorted(s) for (of, kind), s in self._seconds.items() if of == phase}
        return {kind: _latency(seconds) for kind, seconds in sorted(found.items())}

    def fail(self, during: str, talk: str, error: Exception) -> Failure:
        """Something that must not happen has."""
        at = datetime.now(timezone.utc).strftime("%H:%M:%S.%f")[:-3]
        failure = Failure(self.phase, at, during, talk, type(error).__name__, str(error)[:1000])
        with self._lock:
            self.num_failures += 1
            if len(self.failures) < _MAX_FAILURES:
                self.failures.append(failure)
        return failure


def _latency(seconds: Sequence[float]) -> Latency:
    ms = [round(1000 * each, 2) for each in seconds]
    return Latency(len(ms), _percentile(ms, 0.5), _percentile(ms, 0.99), ms[-1])


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank: a value that was measured."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
