"""Engines of sequences that die between any two steps, or in one: with a store nobody notices more than a pause."""

from __future__ import annotations

import os
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

from tests.e2e.state_server import BALANCE, EXAMPLES, StateModels
from tests.e2e.steps import END, Document, HttpLine, Line, Lines, StreamLine, number, value

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


def hear(line: StreamLine, kill: Callable[[], None] = lambda: None) -> list[list[Document]]:
    """What the keyword spotter makes of a recording in pieces of 100 ms, several of them under way when `kill` is called."""
    with wave.open(str(EXAMPLES / "keywords" / "samples" / "music-kitchen.wav")) as file:
        audio = file.readframes(file.getnframes() // 800 * 800)
    pieces = [audio[start : start + 3200] for start in range(0, len(audio), 3200)]
    half = len(pieces) // 2
    answers: list[Document] = []
    for first, group in ((0, pieces[:half]), (half, pieces[half:])):
        for piece in group:
            line.send({"type": "step"}, audio=piece)
        if first:
            kill()
        answers += [line.receive() for _ in group]
    assert not [answer for answer in answers if "error" in answer]
    return [answer["outputs"] for answer in answers]


def test_a_killed_engine_misses_no_word(state_models: StateModels, lines: Lines) -> None:
    """Speech whose pieces are under way when the engine dies is heard as if it had lived."""
    name = "keywords-kept"
    expected = hear(lines.stream(name))
    words = [word for outputs in expected for word in outputs[0]["data"] if word]
    assert len(words) == 2
    assert hear(lines.stream(name), lambda: state_models.kill_engine(name)) == expected
