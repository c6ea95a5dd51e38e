"""What of KV states is in the store and what is not: when they are written, what they may take, and when they are removed."""

from __future__ import annotations

import pytest

from tests.support.harness import reference_reply
from tests.support.spilling import (
    NEW_TOKENS,
    TEXT,
    LateStore,
    ask,
    crowd,
    make,
    model,
    nothing,
    out_of_order,
    pieces,
    residency,
    session_bytes,
)
from ts_stateful.language.conversation.context import Stored
from ts_stateful.protocol.requests import Prompt, Rewind


@pytest.fixture
def store() -> LateStore:
    """A store that several engines use."""
    return LateStore()


def test_the_coldest_are_written_before_their_room_is_needed(store: LateStore) -> None:
    """Half of the memory is free or in the store as well; what is not needed there yet is not written."""
    harness = make(store, sessions=8.0)
    crowd(harness, "abcd")
    assert not store.list("kv")
    crowd(harness, "ef")
    assert pieces(store, "a")
    assert residency(harness, "a") == "device"
    assert not pieces(store, "f")


def test_a_store_that_takes_nothing_costs_time_alone(store: LateStore) -> None:
    """Sessions are computed again as without it, and it is left in peace for half a minute."""
    attempts = []

    def refuse() -> None:
        attempts.append(1)
        out_of_order()

    store.on_create = refuse
    harness = make(store)
    crowd(harness)
    assert harness.engine.stats().spill_failures == len(attempts) == 1
    assert residency(harness, "a") == "record"
    assert ask(harness, "a", "Again")["timing"]["restored_from"] == "replay"
    store.on_create = nothing
    harness.clock.now += 30
    ask(harness, "b")
    assert store.list("kv")


def test_only_what_is_new_is_written_again(store: LateStore) -> None:
    """Pieces that are whole stay; the last one is replaced by a longer one."""
    harness = make(store, sessions=4.0)
    harness.kind.persistence.offload._stored._grain = 16  # type: ignore[union-attr]
    crowd(harness)
    first = pieces(store, "a")
    ask(harness, "a", TEXT)
    crowd(harness, "uv")
    second = pieces(store, "a")
    assert len(second) > len(first) > 2
    assert set(first) - set(second) == {first[-1]}


def test_what_was_gone_back_behind_while_it_was_written_is_not_there(store: LateStore) -> None:
    """What is in the store is then of another history; it is written again when that has grown."""
    harness = make(store, sessions=1.5)
    harness.open("s")
    session = harness.engine.table.get("s")
    context = session.state
    for text in ("One", TEXT):
        ask(harness, "s", text)
    assert context.is_stored
    context.stored = Stored()
    harness.kind.persistence.became_idle()
    harness.executor.run()
    context.rewind(session.state.turns[:1])
    harness.pump()
    assert 0 < context.stored.num_tokens == context.kv.length < 40
    ask(harness, "s", TEXT)
    harness.engine.table.evict_idle()
    answer = ask(harness, "s", "Drei")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 40
    reference_reply(model(), harness, "s", NEW_TOKENS)


def test_what_was_gone_back_behind_while_it_was_read_is_not_there(store: LateStore) -> None:
    """The request that it was read for is gone by then."""
    harness = make(store, sessions=1.5)
    harness.open("s")
    session = harness.engine.table.get("s")
    for text in ("One", TEXT):
        ask(harness, "s", text)
    harness.engine.table.evict_idle()
    harness.engine.drop(harness.submit(Prompt(session_id="s", prompt="Gone")))
    harness.clock.now += 10
    harness.engine.tick()
    harness.submit(Rewind(session_id="s", to_turn=1))
    harness.executor.jobs.reverse()  # the store is slower to read
    harness.pump()
    context = session.state
    assert not context.incoming
    assert 0 < context.stored.num_tokens == context.kv.length < 40


def test_of_a_session_that_has_ended_nothing_is_written(store: LateStore) -> None:
    """Least of all because it has left its turn."""
    harness = make(store, sessions=1.2)
    prompt = Prompt(session_id="s", prompt=TEXT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    harness.submit(prompt, creates_session=True, ephemeral=True)
    while harness.engine.busy:
        harness.engine.step()
    assert not harness.executor.jobs


def test_what_changes_while_it_is_written_is_not_written(store: LateStore) -> None:
    """A turn that goes back behind some states does not wait for the store."""
    harness = make(store, sessions=1.5)
    harness.kind.persistence.offload._stored._grain = 16  # type: ignore[union-attr]
    harness.open("s")
    kv = harness.engine.table.get("s").state.kv
    store.on_create = lambda: kv.truncate(20)
    ask(harness, "s")
    ends = [key.rpartition("/")[2][:17] for key in pieces(store, "s")]
    assert ends == ["00000000-00000016", "00000016-00000020"]
    harness.engine.table.evict_idle()
    answer = ask(harness, "s", "Again")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 20
    reference_reply(model(), harness, "s", NEW_TOKENS)


def test_the_budget_of_the_store_is_kept(store: LateStore) -> None:
    """The least recently used states go first; their sessions are computed again."""
    budget = 4 * session_bytes()
    harness = make(store, sessions=3.0, kvSpillBytes=budget)
    for name in "abcdefgh":
        crowd(harness, name)
        assert harness.engine.stats().spilled_bytes <= budget
    assert not pieces(store, "a")
    assert residency(harness, "a") == "record"
    assert ask(harness, "a", "Again")["timing"]["restored_from"] == "replay"
    reference_reply(model(), harness, "a", NEW_TOKENS)
    assert harness.engine.stats().spilled_bytes <= budget


def test_nothing_is_removed_for_what_does_not_fit(store: LateStore) -> None:
    """Of two whose room is not to be had, neither costs another one its states."""
    harness = make(store, sessions=5.0, kvSpillBytes=2 * session_bytes())
    crowd(harness, "ab")
    for name in "cd":
        harness.open(name)
        ask(harness, name, TEXT * 2)
        harness.clock.now += 1
    assert residency(harness, "a") == "store"
    assert [bool(pieces(store, name)) for name in "abcd"] == [True, True, False, False]


def test_nothing_is_left_of_what_has_ended(store: LateStore) -> None:
    """Closed or expired; what goes on elsewhere stays."""
    harness = make(store)
    crowd(harness)
    elsewhere = make(store)
    elsewhere.clock.now = harness.clock.now
    ask(elsewhere, "b", "Again")
    harness.close("a")
    assert not pieces(store, "a")
    harness.clock.now += 61
    harness.engine.tick()
    harness.run()
    assert pieces(store, "b")
    assert not pieces(store, "c")
    elsewhere.close("b")
    assert not store.list("kv")


def test_what_must_not_be_in_the_store_is_not(store: LateStore) -> None:
    """What was said can be told from the states, so they stay out as well."""
    harness = make(store, content="none")
    crowd(harness)
    assert not store.list("kv")


def test_without_the_setting_nothing_is_written(store: LateStore) -> None:
    """It is off unless it is asked for."""
    harness = make(store, kvSpill=False)
    crowd(harness)
    assert not store.list("kv")
    assert ask(harness, "a", "Again")["timing"]["restored_from"] == "replay"
