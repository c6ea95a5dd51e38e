"""The form of KV states in the store: what is found, and what is not taken for something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest
import torch
from safetensors.torch import load, save

from tests.support.memory_store import MemoryStore
from tests.support.spilling import LateStore
from tests.support.tiny import llama
from tests.support.tiny.latent import glm_moe_dsa
from tests.support.tiny.recurrent_text import lfm2, mamba2, qwen3_next
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import OpenedEntry, session_logs
from ts_stateful.language.persistence.kv_records import StoredKV, Transcript, _checksum
from ts_stateful.session_log.log import Known
from ts_stateful.session_log.ownership import ClosedEntry
from ts_stateful.store.backends.sealed import SealedStore
from ts_stateful.store.base import Store

LOG = list(range(10, 110))
GRAIN = 32


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees nothing."""
    return llama()


@pytest.fixture
def store() -> MemoryStore:
    """An empty one."""
    return MemoryStore()


def stored_kv(model: Model, store: Store) -> StoredKV:
    """The states of a store that has the log of the session."""
    opened = OpenedEntry(fingerprint={}, created_at=0.0, expires_at=60.0, origin="r1")
    session_logs(store).log("s").append(Known(), opened)
    made = StoredKV(model, store)
    made._grain = GRAIN
    return made


def transcript(log: Sequence[int] = LOG, origin: str = "r1") -> Transcript:
    return Transcript("s", origin, list(log), [])


def states(model: Model, length: int, seed: int = 0) -> KVCache:
    """Some numbers."""
    torch.manual_seed(seed)
    kv = model.new_kv()
    kv.reserve(length)
    for part in kv.states:
        part[:, :length] = torch.randn(part[:, :length].shape)
    kv.length = length
    return kv


def same(a: KVCache, b: KVCache, length: int) -> bool:
    pairs = zip(a.states, b.states, strict=True)
    return all(torch.equal(x[:, :length], y[:, :length]) for x, y in pairs)


def test_what_is_written_is_read(model: Model, store: MemoryStore) -> None:
    """Bit by bit, in pieces, the last of which is shorter."""
    kv, made = states(model, 99), stored_kv(model, store)
    assert made.write(transcript(), kv.snapshot(), 60) == 99
    assert len(store.list("kv/s")) == 4
    read = made.read(transcript(), 200).kv
    assert read.length == 99
    assert same(read, kv, 99)


def test_the_keys_of_indexes_are_written_too(store: MemoryStore) -> None:
    """A piece that lacks them is not taken."""
    model = glm_moe_dsa()
    kv, made = states(model, 40), stored_kv(model, store)
    assert made.write(transcript(), kv.snapshot(), 60) == 40
    assert same(made.read(transcript(), 200).kv, kv, 40)
    key = store.list("kv/s")[0]
    data = store._values.pop(key)
    without = save({name: part for name, part in load(data).items() if "indexes" not in name})
    name, _ = key.rsplit("-", 1)
    store.create(f"{name}-{_checksum(transcript(), without)}", without, 60)
    found = made.read(transcript(), 200)
    assert found.kv.length == 0
    assert not found.is_whole


def with_points(model: Model, lengths: Sequence[int], num_tokens: int) -> KVCache:
    """A cache with recurrent states after some numbers of tokens."""
    kv = states(model, num_tokens)
    assert kv.recurrent is not None
    computed = model.new_kv()
    model.forward([1], [Span(computed, 0, 1)], None, [0])
    assert computed.recurrent is not None
    parts = computed.recurrent.after(1)
    assert parts is not None
    for length in lengths:
        kv.recurrent.restore(length, [None if part is None else part + length for part in parts])
    return kv


def equal(a: KVCache, b: KVCache, length: int) -> bool:
    assert a.recurrent is not None
    assert b.recurrent is not None
    pairs = zip(a.recurrent.after(length) or (), b.recurrent.after(length) or (), strict=True)
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


@pytest.mark.parametrize("make", [qwen3_next, lfm2, mamba2])
def test_recurrent_states_are_written_too(make: Callable[[], Model], store: MemoryStore) -> None:
    """All that a session may go back to; without a model's attention, there is nothing else."""
    model = make()
    kv, made = with_points(model, (40, 70, 99), 99), stored_kv(model, store)
    assert made.write(transcript(), kv.snapshot(), 60) == 99
    found = made.read(transcript(), 200)
    assert found.is_whole
    assert found.kv.length == 99
    assert same(found.kv, kv, 99)
    assert all(equal(found.kv, kv, length) for length in (40, 70, 99))
    found.kv.truncate(80)
    assert found.kv.length == 70
    assert made.read(transcript([*LOG[:50], *[1] * 50]), 200).kv.length == (
        40 if model.forward.layout.token_elements == 0 else 0
    )


def test_recurrent_states_that_are_damaged_leave_earlier_ones(store: MemoryStore) -> None:
    """The tokens after those are computed again."""
    model = qwen3_next()
    kv, made = with_points(model, (40, 99), 99), stored_kv(model, store)
    made.write(transcript(), kv.snapshot(), 60)
    [last] = [key for key in store.list("kv/s") if "/00000099-00000099" in key]
    store._values[last] += b"x"
    found = made.read(transcript(), 200)
    assert found.kv.length == 40
    assert not found.is_whole
    assert last not in store.list("kv/s")
    for key in store.list("kv/s"):
        store.delete(key)
    kv.truncate(98)
    made.write(transcript(), kv.snapshot(), 60)
    assert made.read(transcript(), 200).kv.length == 40


def test_no_more_is_read_than_there_is_room_for(model: Model, store: MemoryStore) -> None:
    """Pieces are whole."""
    made = stored_kv(model, store)
    made.write(transcript(), states(model, 99).snapshot(), 60)
    assert made.read(transcript(), 98).kv.length == 96
    assert made.read(transcript(), 31).kv.length == 0


def test_a_history_that_parts_finds_what_is_common(model: Model, store: MemoryStore) -> None:
    """Not what follows, though it is called the same tokens."""
    made = stored_kv(model, store)
    made.write(transcript(), states(model, 99).snapshot(), 60)
    assert made.read(transcript([*LOG[:70], *[1] * 30]), 200).kv.length == 64
    assert made.read(transcript([1, *LOG[1:]]), 200).kv.length == 0


def test_another_session_of_the_same_id_finds_nothing(model: Model, store: MemoryStore) -> None:
    """It was opened by another request, and names reveal no texts without it."""
    made = stored_kv(model, store)
    made.write(transcript(), states(model, 99).snapshot(), 60)
    assert made.read(transcript(origin="r2"), 200).kv.length == 0


def test_another_model_finds_nothing(model: Model, store: MemoryStore) -> None:
    """Its states of the same ids are others."""
    stored_kv(model, store).write(transcript(), states(model, 99).snapshot(), 60)
    other = llama()
    object.__setattr__(other, "fingerprint", {**model.fingerprint, "weights": "other"})
    assert stored_kv(other, store).read(transcript(), 200).kv.length == 0


def test_a_longer_one_replaces_a_shorter_one(model: Model, store: MemoryStore) -> None:
    """Pieces that fit stay, the others are removed."""
    made, kv = stored_kv(model, store), states(model, 99)
    made.write(transcript(), states(model, 40, seed=1).snapshot(), 60)
    short = set(store.list("kv/s"))
    made.write(transcript(), kv.snapshot(), 60)
    long = set(store.list("kv/s"))
    assert len(short & long) == 1
    assert len(long) == 4
    made.write(transcript([*LOG[:32], *[1] * 60]), kv.snapshot(), 60)
    assert len(long & set(store.list("kv/s"))) == 1


def test_an_engine_that_lags_removes_nothing_of_the_one_that_went_on(
    model: Model, store: MemoryStore
) -> None:
    """An engine whose session goes on elsewhere may have to drop what it has of it."""
    made, kv = stored_kv(model, store), states(model, 99)
    made.write(transcript(), kv.snapshot(), 60)
    made.write(transcript(LOG[:50]), states(model, 50).snapshot(), 60)
    read = made.read(transcript(), 200).kv
    assert read.length == 99
    assert same(read, kv, 99)


def test_one_piece_that_is_damaged_costs_what_follows_it(model: Model, store: MemoryStore) -> None:
    """It is removed, so that the next write makes it again."""
    made, kv = stored_kv(model, store), states(model, 99)
    made.write(transcript(), kv.snapshot(), 60)
    second = store.list("kv/s")[1]
    store._values[second] = store._values[second][:-1] + b"x"
    found = made.read(transcript(), 200)
    assert found.kv.length == 32
    assert not found.is_whole
    assert second not in store.list("kv/s")
    made.write(transcript(), kv.snapshot(), 60)
    assert made.read(transcript(), 200).kv.length == 99


def test_values_can_be_sealed(model: Model, store: MemoryStore) -> None:
    """A value that was changed is like one that is missing."""
    sealed = SealedStore(store, [bytes(32)])
    made, kv = stored_kv(model, sealed), states(model, 99)
    made.write(transcript(), kv.snapshot(), 60)
    assert made.read(transcript(), 200).kv.length == 99
    last = store.list("kv/s")[-1]
    value = store._values[last]
    store._values[last] = value[:-1] + bytes([value[-1] ^ 1])
    assert made.read(transcript(), 200).kv.length == 96


@pytest.mark.parametrize("when", range(5))
@pytest.mark.parametrize("begins_again", [False, True])
def test_nothing_is_left_of_a_session_that_is_erased_meanwhile(
    model: Model, when: int, begins_again: bool
) -> None:
    """Whenever another server does so: before the states are looked for, or before one of four pieces is written."""
    store = LateStore()

    def erase() -> None:
        log = session_logs(store).log("s")
        session_logs(store).ownership("s").end(ClosedEntry(at=1.0), log.read().known, [])
        if begins_again:
            later = OpenedEntry(fingerprint={}, created_at=1.0, expires_at=61.0, origin="r2")
            log.append(Known(), later)

    made = stored_kv(model, store)
    num_created = count(1)

    def create() -> None:
        if next(num_created) == when:
            erase()

    store.on_create = create
    if when == 0:
        erase()
    assert made.write(transcript(), states(model, 99).snapshot(), 60) is None
    assert not store.list("kv/s")


def test_an_end_that_has_removed_the_states_removes_later_ones(model: Model) -> None:
    """Those that are written between its removal of the states and that of the log."""

    class Slow(MemoryStore):
        def delete(self, prefix: str) -> None:
            super().delete(prefix)
            if prefix.startswith("kv/") and not outcomes:
                outcomes.append(made.write(transcript(), kv.snapshot(), 60))

    store, kv, outcomes = Slow(), states(model, 40), list[int | None]()
    made = stored_kv(model, store)
    session_logs(store).ownership("s").end(ClosedEntry(at=1.0), Known(), [])
    assert outcomes == [40]
    assert store.list("kv/s") == []
