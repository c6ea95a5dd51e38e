"""The drafts of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ts_stateful.language.conversation.drafts import Drafts, TokenHistory
from ts_stateful.language.speculation import Drafter


def sequence(num_to_prefill: int = 0, left: int = 100, recurrent: object = None) -> Any:
    """A turn whose last tokens occurred before."""
    kv = SimpleNamespace(recurrent=recurrent)
    return SimpleNamespace(
        ids=list(range(20)) + list(range(10)),
        num_to_prefill=num_to_prefill,
        num_after_next=left - 1,
        draft=[1],
        history=TokenHistory(),
        context=SimpleNamespace(kv=kv, drafts=Drafts()),
    )


def test_a_turn_that_decodes_gets_a_draft() -> None:
    """It is computed in the same step as the last token."""
    turn = sequence()
    assert Drafter(enabled=True).extend([(turn, 1)]) == [(turn, 3)]
    assert turn.draft == [10, 11]


@pytest.mark.parametrize(
    "turn", [sequence(left=1), sequence(recurrent=object())], ids=["at its end", "recurrent"]
)
def test_a_turn_without_a_draft(turn: Any) -> None:
    """The last token of a reply needs none; recurrent states cannot forget one."""
    assert Drafter(enabled=True).extend([(turn, 1)]) == [(turn, 1)]
    assert turn.draft == []


def test_a_prompt_gets_no_draft() -> None:
    """Its tokens are known."""
    turn, prompt = sequence(), sequence(num_to_prefill=7)
    assert Drafter(enabled=True).extend([(turn, 1), (prompt, 7)]) == [(turn, 3), (prompt, 7)]


@pytest.mark.parametrize(("enabled", "count"), [(True, 17), (False, 1)])
def test_no_turn_has_a_draft(enabled: bool, count: int) -> None:
    """So many rows fill a step, and it may be off."""
    chunks = [(sequence(), 1) for _ in range(count)]
    drafter = Drafter(enabled=enabled)
    assert drafter.extend(chunks) == chunks
    assert all(turn.draft == [] for turn, _ in chunks)
    assert drafter.num_drafted == 0


def test_what_became_of_drafts_is_counted() -> None:
    """And the session learns from it."""
    turn, drafter = sequence(), Drafter(enabled=True)
    drafter.extend([(turn, 1)])
    drafter.learn(turn, 2)
    assert (drafter.num_drafted, drafter.num_accepted) == (2, 2)
    assert drafter.extend([(turn, 1)]) == [(turn, 5)]
