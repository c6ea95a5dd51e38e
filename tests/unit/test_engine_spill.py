"""KV states in the store: written before they have to leave memory, read when their session is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, llama
from ts_stateful.engine.context import Stored
from ts_stateful.engine.model import Model
from ts_stateful.engine.stored_kv import Transcript
from ts_stateful.protocol import Fork, Image, Info, Prompt, Rewind
from ts_stateful.store.base import StoreUnavailable
from ts_stateful.store.memory import MemoryStore

TEXT = "word " * 40
NEW_TOKENS = 6


def nothing() -> None:
    pass


class LateStore(MemoryStore):
    """A store of which `on_create` and `on_get` hear before KV states are written or read; they may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.on_create: Callable[[], None] = nothing
        self.on_get: Callable[[], None] = nothing

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        if key.startswith("kv/"):
            self.on_create()
        return super().create(key, data, ttl_s)

    def get(self, key: str) -> bytes | None:
        if key.startswith("kv/"):
            self.on_get()
        return super().get(key)


def out_of_order() -> NoReturn:
    raise StoreUnavailable("the store is out of order", "wait")


@cache
def model() -> Model:
    """One that sees nothing."""
    return llama()


@cache
def session_bytes() -> int:
    """What a session with one turn of `TEXT` takes."""
    harness = Harness(model())
    harness.open("s")
    ask(harness, "s")
    return harness.engine.table.device_bytes


@pytest.fixture
def store() -> LateStore:
    """A store that several engines use."""
    return LateStore()


def make(
    store: MemoryStore, sessions: float = 3.0, made: Model | None = None, **settings: Any
) -> Harness:
    """An engine with room for so many sessions of one turn; `settings` are of the store."""
    device_bytes = int(sessions * session_bytes()) if sessions else None
    handler = {
        "deviceCacheBytes": device_bytes,
        "sharedCacheBytes": 0,
        "store": {"kvSpill": True, **settings},
    }
    return Harness(made or model(), {"handler": handler}, store=store)


def ask(harness: Harness, name: str, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    return harness.prompt(
        name, text, **{"max_new_tokens": NEW_TOKENS, "ignore_eos": True, **fields}
    )


def crowd(harness: Harness, names: Sequence[str] = "abcdef") -> None:
    """Sessions that take the memory from those that were there before."""
    for name in names:
        harness.open(name)
        ask(harness, name)
        harness.clock.now += 1


def residency(harness: Harness, name: str) -> str:
    return str(harness.ask(Info(session_id=name))["residency"])


def pieces(store: MemoryStore, name: str) -> Sequence[str]:
    return store.list(f"kv/{name}")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_was_read_is_what_was_there(name: str, store: LateStore) -> None:
    """Every architecture, with images: the reply is that of the undisturbed transcript, and nothing was computed again."""
    made = MODELS[name]()
    harness = make(store, sessions=0, made=made)
    harness.open("s", [noise(1), noise(2, 80, 30)] if made.vision else [])
    ask(harness, "s", ignore_eos=False)
    context = harness.engine.table.get("s").state
    unbounded = harness.engine.table._limits
    harness.engine.table._limits = unbounded._replace(device_bytes=context.device_bytes)
    harness.engine._durability.parked()
    harness.pump()
    harness.engine.table._limits = unbounded
    harness.engine.table.evict_idle()
    assert residency(harness, "s") == "store"
    before = len(context.log)
    answer = ask(harness, "s", "And now?", ignore_eos=False)
    assert answer["timing"]["restored_from"] == "store"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - 1
    reference_reply(made, harness, "s", NEW_TOKENS)


def test_the_coldest_are_written_before_their_room_is_needed(store: LateStore) -> None:
    """Half of the memory is free or in the store as well; what is not needed there yet is not written."""
    harness = make(store, sessions=8.0)
    crowd(harness, "abcd")
    assert not store.list("kv")
    crowd(harness, "ef")
    assert pieces(store, "a")
    assert residency(harness, "a") == "device"
    assert not pieces(store, "f")


def test_every_session_comes_back_by_reading(store: LateStore) -> None:
    """Whoever was dropped had been written."""
    harness = make(store)
    crowd(harness)
    for name in "abc":
        assert residency(harness, name) == "store"
        answer = ask(harness, name, "Again")
        assert answer["timing"]["restored_from"] == "store"
        reference_reply(model(), harness, name, NEW_TOKENS)
    figures = harness.engine.figures()
    assert (figures.spill_reads, figures.spill_failures) == (3, 0)
    assert figures.spilled_bytes > 0


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
    assert harness.engine.figures().spill_failures == (harm != "gone")
    store.on_get = nothing
    crowd(harness, "gh")
    assert ask(harness, "a", "Once more")["timing"]["restored_from"] == "store"
    reference_reply(model(), harness, "a", NEW_TOKENS)


def test_a_store_that_takes_nothing_costs_time_alone(store: LateStore) -> None:
    """Sessions are computed again as without it, and it is left in peace for half a minute."""
    attempts = []

    def refuse() -> None:
        attempts.append(1)
        out_of_order()

    store.on_create = refuse
    harness = make(store)
    crowd(harness)
    assert harness.engine.figures().spill_failures == len(attempts) == 1
    assert residency(harness, "a") == "record"
    assert ask(harness, "a", "Again")["timing"]["restored_from"] == "replay"
    store.on_create = nothing
    harness.clock.now += 30
    ask(harness, "b")
    assert store.list("kv")


def test_only_what_is_new_is_written_again(store: LateStore) -> None:
    """Pieces that are whole stay; the last one is replaced by a longer one."""
    harness = make(store, sessions=4.0)
    harness.engine._durability.spill._stored._grain = 16  # type: ignore[union-attr]
    crowd(harness)
    first = pieces(store, "a")
    ask(harness, "a", TEXT)
    crowd(harness, "uv")
    second = pieces(store, "a")
    assert len(second) > len(first) > 2
    assert set(first) - set(second) == {first[-1]}


def test_forks_and_rewinds(store: LateStore) -> None:
    """A session that went back finds what is still the same; a fork has states of its own."""
    harness = make(store, sessions=4.0)
    harness.engine._durability.spill._stored._grain = 16  # type: ignore[union-attr]
    harness.open("s")
    for text in ("One", "Two", "Three"):
        ask(harness, "s", text)
    crowd(harness)
    assert residency(harness, "s") == "store"
    assert harness.ask(Fork(session_id="s", new_session_id="t"), opens=True)["turn"] == 3
    assert harness.ask(Rewind(session_id="s", to_turn=2))["turn"] == 2
    answer = ask(harness, "s", "Drei")
    assert answer["timing"]["restored_from"] == "store"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    reference_reply(model(), harness, "s", NEW_TOKENS)
    ask(harness, "t", "Vier")
    reference_reply(model(), harness, "t", NEW_TOKENS)


def test_a_fork_reads_what_is_stored_of_its_source(store: LateStore) -> None:
    """So does a fork of a fork, one of a session that was adopted, and none of a source that is gone."""
    first = make(store, sessions=4.0)
    crowd(first)
    second = make(store, sessions=4.0)
    second.clock.now = first.clock.now
    for harness, source, fork in ((first, "a", "t"), (first, "t", "u"), (second, "b", "v")):
        made = Fork(session_id=source, new_session_id=fork)
        assert harness.ask(made, opens=True)["turn"] == 1
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
    harness.engine._durability.parked()
    harness.executor.run()
    context.rewind(session.turns[:1])
    del session.turns[1:]
    harness.pump()
    assert 0 < context.stored.num_tokens == context.kv.length < 40
    ask(harness, "s", TEXT)
    harness.engine.table.evict_idle()
    answer = ask(harness, "s", "Drei")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 40
    reference_reply(model(), harness, "s", NEW_TOKENS)


def test_what_changes_while_it_is_written_is_not_written(store: LateStore) -> None:
    """A turn that goes back behind some states does not wait for the store."""
    harness = make(store, sessions=1.5)
    harness.engine._durability.spill._stored._grain = 16  # type: ignore[union-attr]
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
        assert harness.engine.figures().spilled_bytes <= budget
    assert not pieces(store, "a")
    assert residency(harness, "a") == "record"
    assert ask(harness, "a", "Again")["timing"]["restored_from"] == "replay"
    reference_reply(model(), harness, "a", NEW_TOKENS)
    assert harness.engine.figures().spilled_bytes <= budget


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
    harness = make(store)
    harness.engine._durability._chronicle._content = "none"  # type: ignore[union-attr]
    crowd(harness)
    assert not store.list("kv")


def test_without_the_setting_nothing_is_written(store: LateStore) -> None:
    """It is off unless it is asked for."""
    harness = make(store, kvSpill=False)
    crowd(harness)
    assert not store.list("kv")
    assert ask(harness, "a", "Again")["timing"]["restored_from"] == "replay"


def test_an_image_of_the_same_size_is_another_one(store: LateStore) -> None:
    """The ids are equal, what was seen is not: states of one image never stand for another."""
    made = MODELS["llava"]()
    harness = make(store, sessions=0, made=made)
    stored = harness.engine._durability.spill._stored  # type: ignore[union-attr]
    meanings = []
    for name, seed in (("s", 1), ("t", 2)):
        harness.pictures[name] = noise(seed)
        harness.open(name)
        ask(harness, name, "See", images=(Image(url=name),))
        context = harness.engine.table.get(name).state
        transcript = Transcript("x", "y", list(context.log), context.images)
        meanings.append([stored._meaning(transcript, stop) for stop in (2, len(transcript.log))])
    assert meanings[0][0] == meanings[1][0]
    assert meanings[0][1] != meanings[1][1]
