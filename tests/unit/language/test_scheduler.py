"""The order of work, on plain integers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.language.scheduler import Scheduler, budget_of


@dataclass(eq=False)
class Turn:
    """So many tokens to prefill."""

    num_to_prefill: int
    blocks: tuple[
        tuple[int, int], ...
    ] = ()  # by the tokens to prefill at their beginning, and after them
    alike: Turn | None = None  # begins with the same ids

    def whole(self, count: int) -> int:
        """Blocks are not cut."""
        left = self.num_to_prefill - count
        after = next((stop for start, stop in self.blocks if start > left > stop), left)
        return self.num_to_prefill - after

    def waits_for(self, others: Collection[object], least: int) -> bool:
        """It takes what another one has."""
        return self.alike in others and self.num_to_prefill >= least


def run(scheduler: Scheduler[Turn]) -> list[tuple[Turn, int]]:
    """One step; a turn that has nothing to prefill decodes."""
    step = scheduler.schedule()
    for turn, num_tokens in step:
        assert num_tokens >= 1
        turn.num_to_prefill = max(0, turn.num_to_prefill - num_tokens)
    scheduler.check_integrity()
    return [(turn, num_tokens) for turn, num_tokens in step]


def added(scheduler: Scheduler[Turn], *lengths: int) -> list[Turn]:
    turns = [Turn(length) for length in lengths]
    for turn in turns:
        scheduler.add(turn)
    return turns


def decoding(scheduler: Scheduler[Turn]) -> Turn:
    """A turn whose prompt is done."""
    (turn,) = added(scheduler, 1)
    run(scheduler)
    return turn


def test_a_prompt_is_prefilled_in_chunks_and_then_decodes() -> None:
    """The last chunk is what is left."""
    scheduler = Scheduler[Turn](10)
    other = decoding(scheduler)
    (turn,) = added(scheduler, 25)
    steps = [run(scheduler) for _ in range(4)]
    assert steps == [[(other, 1), (turn, n)] for n in (10, 10, 5, 1)]


def test_prompts_may_take_more_while_nobody_decodes() -> None:
    """There is no stream that would have to wait for them."""
    scheduler = Scheduler[Turn](10)
    (turn,) = added(scheduler, 25)
    assert run(scheduler) == [(turn, 20)]


def test_several_prompts_are_prefilled_together() -> None:
    """As many as fit the budget."""
    scheduler = Scheduler[Turn](10)
    other = decoding(scheduler)
    first, second, third = added(scheduler, 4, 3, 2)
    assert run(scheduler) == [(other, 1), (first, 4), (second, 3), (third, 2)]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """The oldest prompt has half of the budget, the shortest the rest."""
    scheduler = Scheduler[Turn](10)
    other = decoding(scheduler)
    long, middle, short = added(scheduler, 1000, 100, 4)
    assert run(scheduler) == [(other, 1), (long, 5), (middle, 1), (short, 4)]


def test_whoever_decodes_gets_a_token_in_every_step() -> None:
    """Prompts put no more than one budget between two tokens."""
    scheduler = Scheduler[Turn](10)
    other = decoding(scheduler)
    added(scheduler, 300, 200, 1)
    for _ in range(40):
        step = run(scheduler)
        decoded = [turn for turn, _ in step if turn is other]
        assert len(decoded) == 1
        assert sum(num_tokens for _, num_tokens in step) <= 10 + 2


def test_a_removed_turn_is_not_scheduled() -> None:
    """Neither while it prefills nor while it decodes; removing it twice is no error."""
    scheduler = Scheduler[Turn](10)
    turns = added(scheduler, 1, 50)
    run(scheduler)
    for turn in (*turns, *turns):
        scheduler.remove(turn)
    assert len(scheduler) == 0
    assert scheduler.schedule() == []


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 16))
def test_nobody_starves(lengths: list[int], budget: int) -> None:
    """No budget is left over while a prompt waits, whatever comes meanwhile, and the oldest has half of it."""
    scheduler = Scheduler[Turn](budget)
    (oldest,) = added(scheduler, sum(lengths))
    decoding(scheduler)
    for _ in range(-(-2 * sum(lengths) // budget)):
        added(scheduler, *lengths)
        run(scheduler)
    assert oldest.num_to_prefill == 0


def test_one_waits_for_what_another_computes_for_both() -> None:
    """That one, which comes first, has their part of the budget; one that begins otherwise has its own."""
    scheduler = Scheduler[Turn](10)
    other = decoding(scheduler)
    oldest, alike = added(scheduler, 100, 60)
    alike.alike = oldest
    assert run(scheduler) == [(other, 1), (oldest, 10)]
    (short,) = added(scheduler, 3)
    assert run(scheduler) == [(other, 1), (oldest, 7), (short, 3)]
    scheduler.remove(oldest)
    assert (alike, 10) in run(scheduler)


def test_a_short_prompt_does_not_wait_for_a_long_one_that_is_alike() -> None:
    """Which is after it; the long one waits, unless it is the oldest."""
    scheduler = Scheduler[Turn](10)
    other = decoding(scheduler)
    oldest, long, short = added(scheduler, 1000, 100, 50)
    long.alike, short.alike = short, long
    assert run(scheduler) == [(other, 1), (oldest, 5), (short, 5)]
    scheduler.remove(oldest)
    assert run(scheduler) == [(other, 1), (long, 10)]


def test_few_tokens_are_not_waited_for() -> None:
    """They are computed twice, in the same step."""
    scheduler = Scheduler[Turn](320)
    other = decoding(scheduler)
    oldest, few, more = added(scheduler, 300, scheduler.least - 1, scheduler.least)
    few.alike = more.alike = oldest
    assert run(scheduler) == [(other, 1), (oldest, 300), (few, 19)]


def test_blocks_are_not_cut() -> None:
    """What can only be computed at once goes over the budget."""
    scheduler = Scheduler[Turn](4)
    turn = Turn(20, blocks=((16, 6),))
    scheduler.add(turn)
    assert run(scheduler) == [(turn, 14)]
    assert run(scheduler) == [(turn, 6)]


def test_a_gpu_takes_more_tokens_of_prompts_at_once() -> None:
    """Unless their number is set."""
    assert budget_of(None, "cpu") < budget_of(None, "cuda")
    assert budget_of(7, "cpu") == budget_of(7, "cuda") == 7
    assert budget_of(None, "meta") == budget_of(None, "cpu")
