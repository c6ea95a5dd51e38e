"""Many sequences at once: the batches and backlogs of Triton's sequence batcher, on every way to send a step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest

from tests.e2e.speak import error_of, eventually
from tests.e2e.state_server import StateModels
from tests.e2e.steps import (
    END,
    START,
    Document,
    Line,
    Lines,
    StreamLine,
    number,
    sum_of,
    value,
)
from tests.support.state_models.ledger import CURIOUS, HOLD, UNLUCKY

LIMIT = 16  # maxNumSequence of the ledger
QUEUE = 8  # its maxSequenceJobQueueSize

# Numbers of sequences that run side by side.
SIDE_BY_SIDE = {
    "half a batch": [[1, 2, 3, 4], [0, 9, 5, 12]],
    "a full batch": [[1, 2, 3], [11, 12, 14], [111, 112, 113], [1111, 1112, 1113]],
    "some end before others": [[1, 3], [11, 12, 14, 15], [111, 113], [1111, 1112, 1113, 1114]],
    "one longer than all": [[1], [2], [3], list(range(1, 13, 2))],
    "more than a batch of Triton's": [[n, 2 * n, 3 * n] for n in range(20, 35)],
}


def whole(numbers: Sequence[int]) -> list[Document]:
    """The steps of a sequence, with its beginning and its end said."""
    steps = [number(n) for n in numbers]
    steps[0].update(START)
    steps[-1].update(END)
    return steps


def run(line: Line, numbers: Sequence[int]) -> None:
    """All steps of a sequence, one after the other, rightly answered."""
    answers = [line.ask(step) for step in whole(numbers)]
    assert [sum_of(answer) for answer in answers] == list(accumulate(numbers))


@pytest.mark.parametrize("kind", SIDE_BY_SIDE)
def test_sequences_run_side_by_side(lines: Lines, way: str, kind: str) -> None:
    """Each gets its own sums, however many share a pass, and whoever ends."""
    sequences = SIDE_BY_SIDE[kind]
    made = [lines(way) for _ in sequences]
    with ThreadPoolExecutor(len(sequences)) as pool:
        list(pool.map(run, made, sequences))


def test_steps_come_in_any_order_of_sequences(lines: Lines, way: str) -> None:
    """Only the order within a sequence counts."""
    sequences = [[n, n + 1, n + 2, n + 3] for n in (20, 30, 40, 50, 60)]
    made = [lines(way) for _ in sequences]
    order = [index for index, numbers in enumerate(sequences) for _ in numbers]
    random.Random(1).shuffle(order)
    waiting = [iter(whole(numbers)) for numbers in sequences]
    sums: list[list[int]] = [[] for _ in sequences]
    for index in order:
        sums[index].append(sum_of(made[index].ask(next(waiting[index]))))
    assert sums == [list(accumulate(numbers)) for numbers in sequences]


def test_an_end_leaves_others_alone(lines: Lines, way: str) -> None:
    """And the beginning of the next sequence of the same id too."""
    one, other = lines(way), lines(way)
    assert sum_of(other.ask(number(100))) == 100
    assert sum_of(one.ask(number(1, **END))) == 1
    assert sum_of(other.ask(number(100))) == 200
    assert sum_of(one.ask(number(2, **START))) == 2
    assert sum_of(other.ask(number(100, **END))) == 300
    assert sum_of(one.ask(number(3))) == 5


def test_steps_may_be_sent_ahead(lines: Lines) -> None:
    """On a stream, without waiting for answers, which come in the order of the steps."""
    line = lines.stream()
    for n in range(1, 6):
        line.send(number(n))
    assert [sum_of(line.receive()) for _ in range(5)] == [1, 3, 6, 10, 15]


def test_the_next_sequence_may_be_sent_ahead_of_the_end(lines: Lines) -> None:
    """Under the same id: it begins when the one before it has ended, with END or without."""
    line = lines.stream()
    for numbers in ([11, 12, 14], [11111, 11113]):
        for step in whole(numbers):
            line.send(step)
    assert [sum_of(line.receive()) for _ in range(5)] == [11, 23, 37, 11111, 22224]
    for step in (number(1), number(3), *whole([7, 8])):
        line.send(step)
    assert [sum_of(line.receive()) for _ in range(4)] == [1, 4, 7, 15]


def together(
    models: StateModels, lines: Lines, made: Sequence[Line], steps: Sequence[Document]
) -> list[Document]:
    """Sends a step on each line while another sequence is held in the model; returns the answers."""
    held, probe = lines("http"), lines("http")
    nonsense = {"type": "dance"}  # the worker itself refuses that, without the engine
    for line in (held, probe, *made):
        assert error_of(line.ask(nonsense)) == ("invalid_request", 400)  # and the line is connected
    models.held.unlink(missing_ok=True)
    models.gate.touch()
    with ThreadPoolExecutor(len(made) + 1) as pool:
        holding = pool.submit(held.ask, number(HOLD, **END))
        eventually(models.held.exists)
        answers = [pool.submit(line.ask, step) for line, step in zip(made, steps, strict=True)]
        for _ in range(5):  # what came before these is on its way to the engine, almost surely
            probe.ask(nonsense)
        models.gate.unlink()
        assert sum_of(holding.result()) == HOLD
        return [answer.result() for answer in answers]


def test_all_that_wait_run_in_one_pass(state_models: StateModels, lines: Lines) -> None:
    """None waits for a fuller pass, and none for others: how many there are is the model's own answer.

    Requests take their time on the way, so that a step may come too late for the pass of the others; then there is another
    round.
    """

    def round_of_six() -> bool:
        made = [lines("http") for _ in range(6)]
        steps = [number(CURIOUS + n, **START, **END) for n in range(6)]
        answers = together(state_models, lines, made, steps)
        assert [sum_of(answer) for answer in answers] == [CURIOUS + n for n in range(6)]
        return [value(answer, "rows") for answer in answers] == [[6]] * 6

    eventually(round_of_six)


def test_a_row_that_fails_disturbs_no_other(state_models: StateModels, lines: Lines) -> None:
    """The model raises for the whole pass; who is not to blame is answered all the same, and who is keeps his state."""
    made = [lines("http") for _ in range(4)]
    for line in made:
        assert sum_of(line.ask(number(100))) == 100
    for _ in range(3):
        before = [value(line.ask(number(0)), "numbers") for line in made]
        steps = [number(n) for n in (1, UNLUCKY, 2, 3)]
        answers = together(state_models, lines, made, steps)
        assert error_of(answers[1]) == ("internal", 500)
        after = [value(line.ask(number(0)), "numbers") for line in made]
        assert after == [
            [*numbers, *sent, 0] for numbers, sent in zip(before, ([1], [], [2], [3]), strict=True)
        ]


def test_too_many_sequences_are_refused_until_one_ends(lines: Lines) -> None:
    """Triton lets the next one wait; here it is told when to come back, and those that run go on."""
    made = [lines("http") for _ in range(LIMIT)]
    for line in made:
        assert sum_of(line.ask(number(1))) == 1
    late = lines("http")
    refused = late.ask(number(5, **START))
    assert error_of(refused) == ("too_many_sessions", 429)
    assert refused["error"]["retry_after_s"] > 0
    assert refused["error"]["retryable"] is True
    assert [sum_of(line.ask(number(2))) for line in made] == [3] * LIMIT
    assert sum_of(made[0].ask(number(3, **END))) == 6
    assert sum_of(late.ask(number(5, **START))) == 5
    assert error_of(made[0].ask(number(1)))[0] == "too_many_sessions"


def test_too_many_steps_of_one_sequence_are_refused(
    state_models: StateModels, lines: Lines
) -> None:
    """Those that were taken run, in some order; those that were not have never been."""
    line = lines("http")

    def round_of_many() -> bool:
        line.ask(number(0, **START))
        same = [lines("http", line.session) for _ in range(QUEUE + 3)]
        answers = together(state_models, lines, same, [number(1)] * len(same))
        refused = [error_of(answer) for answer in answers if "error" in answer]
        assert set(refused) <= {("queue_full", 429)}
        sums = sorted(sum_of(answer) for answer in answers if "error" not in answer)
        assert sums == list(range(1, len(sums) + 1))
        return bool(refused)

    eventually(round_of_many)


def admitted(line: StreamLine, step: Document) -> bool:
    """Sends a step; whether TorchServe had a place for its sequence."""
    line.send(step)
    return not line.receive_raw().status.code


def test_torchserve_has_a_place_per_sequence(lines: Lines) -> None:
    """In the sequence profile it refuses further ids by itself, until one was idle for `sequenceMaxIdleMSec`: END frees none.

    A sequence that lost its place so has run out, which the engine remembers where TorchServe does not.
    """
    first, second, third = (lines.stream("ledger-narrow") for _ in range(3))
    assert sum_of(first.ask(number(1))) == 1
    assert sum_of(second.ask(number(1, **END))) == 1
    assert not admitted(third, number(3))
    eventually(lambda: admitted(third, number(3, **START)))
    assert sum_of(third.ask(number(4))) == 7
    eventually(lambda: admitted(first, {"type": "hello"}))
    assert error_of(first.ask(number(2))) == ("session_expired", 410)
    assert sum_of(first.ask(number(2, **START))) == 2
