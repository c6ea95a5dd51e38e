"""Rows that were computed ahead are used by the turns for which they are valid, and by no other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from tests.support.harness import Harness
from tests.support.tiny import llama
from ts_stateful.language.ahead import Ahead
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.kv.host_copies import HostCopy
from ts_stateful.protocol.requests import Prompt

LOGITS = torch.arange(6.0).view(3, 2)


@pytest.fixture
def turns() -> list[Sequence]:
    """Return three turns in progress, whose last token is not computed yet."""
    harness = Harness(llama())
    for name in "abc":
        harness.open(name)
    for name in "abc":
        prompt = Prompt(session_id=name, prompt="Hi", max_new_tokens=60, ignore_eos=True)
        harness.submit(prompt)
        harness.steps(8)
    found: list[Sequence] = [session.work[0] for session in harness.engine.table]
    assert [turn.context.kv.length for turn in found] == [len(turn.ids) - 1 for turn in found]
    return found


def ahead_of(turns: list[Sequence]) -> Ahead:
    chosen = HostCopy(torch.tensor([turn.ids[-1] for turn in turns]))
    return Ahead(turns, range(len(turns)), chosen, LOGITS)


def test_turns_that_go_on_find_their_rows(turns: list[Sequence]) -> None:
    """In any order, and some of them."""
    ahead = ahead_of(turns)
    assert ahead.find([(turn, 1) for turn in turns]) == {turn: i for i, turn in enumerate(turns)}
    found = ahead.find([(turns[2], 1), (turns[0], 1)])
    assert [*found.items()] == [(turns[2], 2), (turns[0], 0)]
    assert torch.equal(ahead.rows([2, 0]), LOGITS[[2, 0]])


def test_all_rows_are_not_copied(turns: list[Sequence]) -> None:
    """As in most steps."""
    assert ahead_of(turns).rows([0, 1, 2]) is LOGITS


def _move(turn: Sequence) -> None:
    turn.context.kv.reserve(turn.context.kv.capacity + 1)


def _end(turn: Sequence) -> None:
    turn.status = TurnStatus.COMMITTING


def _other_token(turn: Sequence) -> None:
    turn.ids[-1] += 1


def _more_tokens(turn: Sequence) -> None:
    turn.ids.append(5)


def _shorter(turn: Sequence) -> None:
    turn.context.kv.truncate(turn.context.kv.length - 1)


@pytest.mark.parametrize("change", [_move, _end, _other_token, _more_tokens, _shorter])
def test_turns_that_have_changed_find_none(
    turns: list[Sequence], change: Callable[[Sequence], None]
) -> None:
    """The others find theirs."""
    ahead = ahead_of(turns)
    change(turns[1])
    assert ahead.find([(turn, 1) for turn in turns]) == {turns[0]: 0, turns[2]: 2}


def test_drafts_and_other_turns_find_none(turns: list[Sequence]) -> None:
    """A row is of one token."""
    ahead = ahead_of(turns[:2])
    assert ahead.find([(turns[0], 2), (turns[1], 1), (turns[2], 1)]) == {turns[1]: 1}


def test_turns_that_have_ended_are_not_kept(turns: list[Sequence]) -> None:
    """Nor are the states of their sessions, which may be large."""
    turn = Sequence(turns[0].session, turns[0].command, 0.0)
    turn.ids = [1]
    ahead, held = ahead_of([turn]), weakref.ref(turn)
    del turn
    gc.collect()
    assert held() is None
    assert ahead.find([]) == {}


def test_the_last_token_is_known_to_be_the_last(turns: list[Sequence]) -> None:
    """By its number."""
    turn = turns[0]
    turn.max_new_tokens = turn.num_generated + 2
    assert turn.num_after_next
    turn.max_new_tokens -= 1
    assert not turn.num_after_next
