"""Forecasts of a series, sent value by value, with the state kept and without it.

`make serve EXAMPLE=lstm` first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ts_stateful.client import Server, connect

SERIES = Path(__file__).resolve().parent / "series.csv"
FIRST = 20  # values before the first forecast
SHOWN = 8


def with_state(server: Server, values: Sequence[float]) -> list[float]:
    """Forecast each value after the first ones, in one sequence: a step sends only new values."""
    forecasts = []
    with server.steps() as steps:
        known = list(values[:FIRST])
        for value in values[FIRST:]:
            forecasts.append(steps.step({"values": known}).outputs["forecast"].data[0])
            known = [value]
    return forecasts


def without_state(server: Server, values: Sequence[float]) -> list[float]:
    """Forecast each step in a sequence of its own: the model sees one value and nothing before it."""
    forecasts = []
    for value in values[FIRST - 1 : -1]:
        with server.steps() as steps:
            answer = steps.step({"values": [value]}, end=True)
            forecasts.append(answer.outputs["forecast"].data[0])
    return forecasts


def mean_error(forecasts: Sequence[float], values: Sequence[float]) -> float:
    """Return the mean distance between forecasts and values."""
    pairs = list(zip(forecasts, values[FIRST:], strict=True))
    return sum(abs(forecast - value) for forecast, value in pairs) / len(pairs)


def main() -> None:
    """Print a table and the two errors."""
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
