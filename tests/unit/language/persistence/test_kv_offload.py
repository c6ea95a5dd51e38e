"""KV states in the store: written before they have to leave memory, read when their session is asked for."""

from __future__ import annotations

import pytest

from tests.support.harness import reference_reply
from tests.support.pictures import noise
from tests.support.sounds import media_of
from tests.support.spilling import (
    NEW_TOKENS,
    LateStore,
    ask,
    crowd,
    make,
    model,
    nothing,
    out_of_order,
    pieces,
    residency,
)
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.language.persistence.kv_records import Transcript
from ts_stateful.protocol.requests import Close, Fork, Image, Prompt, Rewind
from ts_stateful.sessions.session import Residency

RECURRENT = {name: MORE_MODELS[name] for name in ("falcon_h1", "jamba", "lfm2", "mamba")}


@pytest.fixture
def store() -> LateStore:
    """A store that several engines use."""
    return LateStore()


@pytest.mark.parametrize("name", sorted(MODELS | RECURRENT))
def test_what_was_read_is_what_was_there(name: str, store: LateStore) -> None:
    """Every architecture, with images: the reply is that of the undisturbed transcript, and nothing was computed again."""
    made = (MODELS | RECURRENT)[name]()
    harness = make(store, sessions=0, made=made)
    harness.open("s", media_of(made))
    ask(harness, "s", ignore_eos=False)
    context = harness.engine.table.get("s").state
    unbounded = harness.engine.table.limits
    harness.engine.table.limits = unbounded._replace(device_bytes=context.device_bytes)
    harness.kind.persistence.became_idle()
    harness.pump()
    harness.engine.table.limits = unbounded
    harness.engine.table.evict_idle()
    assert residency(harness, "s") == "store"
    before = len(context.log)
    answer = ask(harness, "s", "And now?", ignore_eos=False)
    assert answer["timing"]["restored_from"] == "store"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - 1
    reference_reply(made, harness, "s", NEW_TOKENS)


def test_every_session_comes_back_by_reading(store: LateStore) -> None:
    """States are written before they are dropped."""
    harness = make(store)
    crowd(harness)
    for name in "abc":
        assert residency(harness, name) == "store"
        answer = ask(harness, name, "Again")
        assert answer["timing"]["restored_from"] == "store"
        reference_reply(model(), harness, name, NEW_TOKENS)
    stats = harness.engine.stats()
    assert (stats.spill_reads, stats.spill_failures) == (3, 0)
    assert stats.spilled_bytes > 0


def test_another_engine_reads_what_was_written(store: LateStore) -> None:
    """A session that is adopted returns by reading too."""
    first = make(store)
    crowd(first)
    second = make(store)
    second.clock.now = first.clock.now
    answer = ask(second, "a", "Again")
    assert answer["timing"]["restored_from"] == "store"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 40
    reference_reply(model(), second, "a", NEW_TOKENS)
    unwritten = ask(second, "f", "Again")
    assert unwritten["timing"]["restored_from"] == "store"
    assert unwritten["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    reference_reply(model(), second, "f", NEW_TOKENS)


def test_states_of_a_session_that_another_server_erased_are_not_written(store: LateStore) -> None:
    """Those in memory are dropped when they would be written, and the next turn is refused."""
    first, second = make(store), make(store)
    second.clock.now = first.clock.now
    first.open("s")
    ask(first, "s")
    assert second.ask(Close(session_id="s", erase=True))["closed"]
    crowd(first)
    assert pieces(store, "a")
    assert not pieces(store, "s")
    assert first.engine.table.get("s").state.residency is Residency.RECORD
    assert ask(first, "s", "And now?")["error"]["code"] == "session_moved"
    assert ask(first, "s", "And now?")["error"]["code"] == "session_closed"


def test_reading_begins_when_the_request_arrives(store: LateStore) -> None:
    """Before the turn is the next one, and before its images are there; the room for the states is taken."""
    harness = make(store)
    crowd(harness)
    before = harness.engine.table.device_bytes
    request = harness.submit(Prompt(session_id="a", prompt="Again", max_new_tokens=2))
    context = harness.engine.table.get("a").state
    assert context.incoming
    assert harness.engine.table.device_bytes <= before + context.reserved
    assert not harness.engine.busy
    harness.pump()
    assert not harness.engine.table.get("a").state.incoming
    assert context.kv.length > 40
    harness.run()
    assert harness.last(request)["timing"]["restored_from"] == "store"


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "unavailable", "of another shape"])
def test_what_cannot_be_read_is_computed(store: LateStore, harm: str) -> None:
    """The client sees nothing but the time; damage is removed, counted, and made good with the next write."""
    harness = make(store)
    crowd(harness)
    [key] = pieces(store, "a")
    data = store._values[key]
    if harm == "cut":
        store._values[key] = data[:-1]
    elif harm == "changed":
        store._values[key] = data[:-1] + bytes([data[-1] ^ 1])
    elif harm == "gone":
        store.delete(key)
    elif harm == "unavailable":
        store.on_get = out_of_order
    else:
        store._values[key] = store._values[pieces(store, "b")[0]][:-4]
    answer = ask(harness, "a", "Again")
    assert answer["timing"]["restored_from"] == "replay"
    reference_reply(model(), harness, "a", NEW_TOKENS)
    assert harness.engine.stats().spill_failures == (harm != "gone")
    store.on_get = nothing
    crowd(harness, "gh")
    assert ask(harness, "a", "Once more")["timing"]["restored_from"] == "store"
    reference_reply(model(), harness, "a", NEW_TOKENS)


def test_forks_and_rewinds(store: LateStore) -> None:
    """A session that went back finds what is still the same; a fork has states of its own."""
    harness = make(store, sessions=4.0)
    harness.kind.persistence.offload._stored._grain = 16  # type: ignore[union-attr]
    harness.open("s")
    for text in ("One", "Two", "Three"):
        ask(harness, "s", text)
    crowd(harness)
    assert residency(harness, "s") == "store"
    assert harness.ask(Fork(session_id="s", new_session_id="t"), creates_session=True)["turn"] == 3
    assert harness.ask(Rewind(session_id="s", to_turn=2))["turn"] == 2
    answer = ask(harness, "s", "Drei")
    assert answer["timing"]["restored_from"] == "store"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    reference_reply(model(), harness, "s", NEW_TOKENS)
    ask(harness, "t", "Vier")
    reference_reply(model(), harness, "t", NEW_TOKENS)


def test_a_fork_reads_what_is_stored_of_its_source(store: LateStore) -> None:
    """So does a fork of a fork, one of a session that was adopted, and none of a source that is closed."""
    first = make(store, sessions=4.0)
    crowd(first)
    second = make(store, sessions=4.0)
    second.clock.now = first.clock.now
    for harness, source, fork in ((first, "a", "t"), (first, "t", "u"), (second, "b", "v")):
        made = Fork(session_id=source, new_session_id=fork)
        assert harness.ask(made, creates_session=True)["turn"] == 1
        assert residency(harness, fork) == "store"
    harness.close("b")
    for harness, fork, place in (
        (first, "u", "store"),
        (first, "t", "store"),
        (second, "v", "replay"),
    ):
        answer = ask(harness, fork, "Again")
        assert answer["timing"]["restored_from"] == place
        assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 40) == (
            place == "store"
        )
        reference_reply(model(), harness, fork, NEW_TOKENS)
    for name in "cdef":
        ask(first, name)
    assert pieces(store, "t")
    assert ask(first, "t", "Once more")["timing"]["restored_from"] == "store"


def test_an_image_of_the_same_size_is_another_one(store: LateStore) -> None:
    """The ids are equal, what was seen is not: states of one image never stand for another."""
    made = MODELS["llava"]()
    harness = make(store, sessions=0, made=made)
    stored = harness.kind.persistence.offload._stored  # type: ignore[union-attr]
    meanings = []
    for name, seed in (("s", 1), ("t", 2)):
        harness.media[name] = noise(seed)
        harness.open(name)
        ask(harness, name, "See", images=(Image(url=name),))
        context = harness.engine.table.get(name).state
        transcript = Transcript("x", "y", list(context.log), context.images)
        stops = (2, len(transcript.log))
        meanings.append([stored._meanings(transcript)[stop] for stop in stops])
        ascending, descending = stored._meanings(transcript), stored._meanings(transcript)
        assert [ascending[stop] for stop in stops] == meanings[-1]
        assert [descending[stop] for stop in reversed(stops)] == meanings[-1][::-1]
    assert meanings[0][0] == meanings[1][0]
    assert meanings[0][1] != meanings[1][1]
