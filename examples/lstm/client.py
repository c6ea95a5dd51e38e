"""Sends a series value by value and compares the forecasts with what comes: with the state kept, and without.

`make serve EXAMPLE=lstm` first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ts_stateful.client import Server, connect

SERIES = Path(__file__).resolve().parent / "series.csv"
FIRST = 20  # values that are known from the beginning
SHOWN = 8


def with_state(server: Server, values: Sequence[float]) -> list[float]:
    """The forecast of each value behind the first ones, in one sequence: a step sends only what is new."""
    forecasts = []
    with server.steps() as steps:
        known = list(values[:FIRST])
        for value in values[FIRST:]:
            forecasts.append(steps.step({"values": known}).outputs["forecast"].data[0])
            known = [value]
    return forecasts


def without_state(server: Server, values: Sequence[float]) -> list[float]:
    """The same, each step in a sequence of its own: the model sees one value and nothing before it."""
    forecasts = []
    for value in values[FIRST - 1 : -1]:
        with server.steps() as steps:
            answer = steps.step({"values": [value]}, end=True)
            forecasts.append(answer.outputs["forecast"].data[0])
    return forecasts


def mean_error(forecasts: Sequence[float], values: Sequence[float]) -> float:
    """The mean distance between what was forecast and what came."""
    pairs = list(zip(forecasts, values[FIRST:], strict=True))
    return sum(abs(forecast - value) for forecast, value in pairs) / len(pairs)


def main() -> None:
    """Prints a table and the two errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:7070", help="default: %(default)s")
    parser.add_argument("--model", default="lstm", help="default: %(default)s")
    options = parser.parse_args()
    values = [float(line) for line in SERIES.read_text().split()]
    with connect(options.url, model=options.model) as server:
        kept = with_state(server, values)
        lost = without_state(server, values)
    print("forecast    came")
    for forecast, value in zip(kept[:SHOWN], values[FIRST:], strict=False):
        print(f"{forecast:8.3f}{value:8.3f}")
    print(
        f"mean error with the state {mean_error(kept, values):.3f}, without it {mean_error(lost, values):.3f}"
    )


if __name__ == "__main__":
    main()
