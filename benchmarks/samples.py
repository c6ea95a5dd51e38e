"""Raw samples, their medians and spread, and the order in which they are taken.

Systems are measured in turn, round after round, each round beginning with another system. So a temporary slowdown of the
machine affects all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from benchmarks.names import PROBE
from benchmarks.progress import Progress

__all__ = ["Sample", "Samples", "Spread", "Trial", "interleave", "settle", "slope", "spread_of"]

_REST_S = 0.02
_PROBE_SIZE = 100_000


class Sample(Struct, frozen=True, omit_defaults=True):
    """One number. `x` is the abscissa of its plot: tokens of history, streams, open sessions."""

    measure: str
    system: str
    x: int
    value: float
    unit: str
    at: int = 0  # the exact abscissa where `x` is rounded: the history of this turn


class Spread(NamedTuple):
    """The reported statistics of several samples."""

    median: float
    low: float  # 10th percentile
    high: float  # 90th percentile
    size: int  # samples


class Trial(NamedTuple):
    """A way to sample one system at one place of an abscissa, in every round or in every second, third, ... one."""

    name: str
    run: Callable[[], Iterable[Sample]]
    every: int = 1


class Samples:
    """All samples of a run, in order."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self.all = list(samples)

    def add(self, samples: Iterable[Sample]) -> None:
        """Add samples."""
        self.all += samples

    def of(self, measure: str, system: str, x: int | None = None) -> list[Sample]:
        """Return those of one measure and system, at one place or at all."""
        return [
            sample
            for sample in self.all
            if (sample.measure, sample.system) == (measure, system) and x in (None, sample.x)
        ]

    def median(self, measure: str, system: str, x: int | None = None) -> float | None:
        """Return the median of those, or None if there are none."""
        found = self.of(measure, system, x)
        return statistics.median(sample.value for sample in found) if found else None

    def groups(self) -> dict[tuple[str, str, int, str], Spread]:
        """Return the spread for every measure, system, place and unit, in the order of their first samples."""
        values: dict[tuple[str, str, int, str], list[float]] = {}
        for sample in self.all:
            key = (sample.measure, sample.system, sample.x, sample.unit)
            values.setdefault(key, []).append(sample.value)
        return {key: spread_of(found) for key, found in values.items()}

    def to_builtins(self) -> list[object]:
        """Return them for JSON."""
        return [msgspec.to_builtins(sample) for sample in self.all]


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the 10th and 90th percentiles (linear interpolation, as numpy's default)."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), deciles[0], deciles[-1], len(values))


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through points `(x, y)`."""
    xs, ys = zip(*points, strict=True)
    return statistics.linear_regression(xs, ys).slope


def settle() -> list[Sample]:
    """Wait for busy-waiting threads to stop, then time a fixed piece of work: `PROBE` in milliseconds.

    On an otherwise idle machine this time is constant.
    """
    time.sleep(_REST_S)
    begin = time.perf_counter()
    sum(range(_PROBE_SIZE))
    return [Sample(PROBE, "machine", 0, 1000 * (time.perf_counter() - begin), "ms")]


def interleave(
    trials: Sequence[Trial],
    samples: Samples,
    progress: Progress,
    *,
    rounds: int,
    at_least: int,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    before: Callable[[], Iterable[Sample]] = settle,
) -> None:
    """Run every trial that is due once a round; take the samples of `before` before each one.

    After `at_least` rounds, no other round begins once `clock` has passed `until`.
    """
    for number in range(rounds):
        if number >= at_least and clock() > until:
            progress.skip((rounds - number) * len(trials))
            return
        first = number % len(trials)
        for trial in (*trials[first:], *trials[:first]):
            if number % trial.every == 0:
                samples.add(before())
                samples.add(trial.run())
            progress.step(trial.name)
