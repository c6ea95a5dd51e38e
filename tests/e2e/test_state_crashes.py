"""Engines of sequences that die between any two steps, or in one: with a store nobody notices more than a pause."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

from tests.e2e.state_server import BALANCE, StateModels
from tests.e2e.steps import END, HttpLine, Line, Lines, number, value

# `make test PYTEST_ARGS=tests/e2e/test_state_crashes.py KILLS=100` for more.
KILLS = int(os.environ.get("KILLS", "2"))
NUM_SEQUENCES = 8
NUM_STEPS = 12  # as many as the ledger remembers
MODEL = "ledger-kept"


def step_all(line: Line, first: int, at: Callable[[int], None]) -> None:
    """Sequence after sequence under one id, each to its END; every answer is what the sequence was told so far."""
    for sequence in range(KILLS):
        numbers = [first + sequence + step for step in range(NUM_STEPS)]
        for turn, (told, total) in enumerate(zip(numbers, accumulate(numbers), strict=True), 1):
            at(sequence * NUM_STEPS + turn)
            fields = END if turn == NUM_STEPS else {}
            answer = line.ask(number(told, **fields))
            assert value(answer, "sum") == [total]
            assert value(answer, "account") == [BALANCE - total]
            assert value(answer, "numbers") == numbers[:turn]
            assert value(answer, "flags") == [turn == 1, turn == NUM_STEPS]
            assert answer["turn"] == turn


def test_a_killed_engine_loses_no_step_and_repeats_none(
    state_models: StateModels, lines: Lines
) -> None:
    """Eight sequences step over gRPC streams and HTTP while their engine is killed: they get what they would have got."""
    made: list[Line] = [lines.stream(MODEL) for _ in range(NUM_SEQUENCES // 2)]
    for index in range(NUM_SEQUENCES // 2):
        made.append(lines.add(HttpLine(state_models.server, MODEL, f"{made[index].session}.http")))

    def kill(step: int) -> None:
        if step % NUM_STEPS == NUM_STEPS // 2:
            state_models.kill_engine(MODEL)

    with ThreadPoolExecutor(NUM_SEQUENCES) as pool:
        jobs = [
            pool.submit(
                partial(step_all, line, 100 * index + 20, kill if not index else lambda _: None)
            )
            for index, line in enumerate(made)
        ]
    for job in jobs:
        job.result()
