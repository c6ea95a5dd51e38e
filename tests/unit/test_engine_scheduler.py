"""The order of work, on plain integers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.engine.scheduler import Scheduler


@dataclass(eq=False)
class Turn:
    """So many tokens to prefill."""

    num_to_prefill: int


def run(scheduler: Scheduler[Turn]) -> list[tuple[Turn | None, int, int]]:
    step = scheduler.schedule()
    if step.prefill is not None:
        step.prefill.num_to_prefill -= step.chunk
    scheduler.check_integrity()
    return [(step.prefill, step.chunk, len(step.decode))]


def test_a_prompt_is_prefilled_in_chunks_and_then_decodes() -> None:
    """The last chunk is what is left."""
    scheduler = Scheduler[Turn](10)
    turn = Turn(25)
    scheduler.add(turn)
    steps = [step for _ in range(4) for step in run(scheduler)]
    assert steps == [(turn, 10, 0), (turn, 10, 0), (turn, 5, 0), (None, 0, 1)]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """Prefills take turns."""
    scheduler = Scheduler[Turn](10)
    long, short = Turn(1000), Turn(5)
    scheduler.add(long)
    scheduler.add(short)
    run(scheduler)
    assert run(scheduler)[0][0] is short


def test_whoever_decodes_gets_a_token_in_every_step() -> None:
    """A prefill puts no more than one chunk between two tokens."""
    scheduler = Scheduler[Turn](10)
    scheduler.add(Turn(1))
    run(scheduler)
    scheduler.add(Turn(500))
    assert all(run(scheduler)[0][2] == 1 for _ in range(50))


def test_a_removed_turn_is_not_scheduled() -> None:
    """Neither while it prefills nor while it decodes; removing it twice is no error."""
    scheduler = Scheduler[Turn](10)
    turns = [Turn(1), Turn(50)]
    for turn in turns:
        scheduler.add(turn)
    run(scheduler)
    for turn in (*turns, *turns):
        scheduler.remove(turn)
    assert len(scheduler) == 0
    assert scheduler.schedule() == (None, 0, [])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 16))
def test_nobody_starves(lengths: list[int], chunk: int) -> None:
    """Every prompt is prefilled within as many steps as there are chunks."""
    scheduler = Scheduler[Turn](chunk)
    turns = [Turn(length) for length in lengths]
    for turn in turns:
        scheduler.add(turn)
    for _ in range(sum(-(-length // chunk) for length in lengths)):
        run(scheduler)
    assert all(turn.num_to_prefill == 0 for turn in turns)
