"""Changes of sessions that an outage of the store cuts off at any of its calls: all of a change counts, or nothing."""

from __future__ import annotations

import itertools

import pytest

from tests.support.harness import Harness
from tests.support.store_engines import FailingStore, code
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import AnyRequest, Chat, Discard, Respond, Said
from ts_stateful.protocol.requests import Fork, Info, Prompt

TURNS = 3


def say(*texts: str) -> tuple[Said, ...]:
    roles = itertools.cycle(("user", "assistant"))
    return tuple(Said(role, (text,)) for role, text in zip(roles, texts, strict=False))


def begun(model: Model, store: FailingStore) -> Harness:
    """Return an engine with a session of three responses."""
    harness = Harness(model, store=store)
    for after in range(TURNS):
        said = Respond(
            session_id="s", messages=say(f"Turn {after}"), after=after, note="n", max_new_tokens=4
        )
        harness.ask(said, creates_session=not after)
    return harness


def turns(harness: Harness, session_id: str) -> int | None:
    """Return the number of turns of a session; None if there is no such session."""
    answer = harness.ask(Info(session_id=session_id))
    return None if "error" in answer else int(answer["turns"])


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (Fork(session_id="s", new_session_id="new"), None, TURNS),
        (Prompt(session_id="new", prompt="Hello", max_new_tokens=4), None, 1),
        (Chat(session_id="s", messages=say("Other"), max_new_tokens=4), TURNS, 1),
        (Discard(session_id="s", turn=TURNS), TURNS, TURNS - 1),
    ],
    ids=["fork", "prompt", "chat", "discard"],
)
def test_a_change_counts_as_a_whole(
    change: AnyRequest, before: int | None, after: int, model: Model
) -> None:
    """A fork without its last turns, or a session that went back for a turn that failed, would be data that is lost."""
    session_id = "s" if before else "new"
    for num_calls in itertools.count():
        store = FailingStore()
        first = begun(model, store)
        store.num_left = num_calls
        answer = first.ask(change, request_id="change", creates_session=not before)
        store.num_left = None
        seen = turns(Harness(model, store=store), session_id)
        if "error" not in answer:
            assert seen == after
            break
        assert code(answer) == "store_unavailable"
        assert seen in (before, after)
        assert turns(first, session_id) in (before, after)
        if before is None:  # as if the engine had died of it
            other = Harness(model, store=store)
            again = other.ask(change, request_id="change", creates_session=True, is_retry=True)
            assert "error" not in again
            assert turns(other, session_id) == after
    assert num_calls
