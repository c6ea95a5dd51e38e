"""Sequences in a store: what is written of a step, and how a sequence is found again.

Owns the entries, their form at rest, their keys, and which of them count. Knows nothing of requests, nor of when something is
written.

What is kept of a sequence lies below `<scope>/<id>/`: entries under positions of 8 digits, and states as safetensors under
their SHA-256. The last entry that stands alone and those behind it are the sequence; what lies before them has been removed,
or will be. Who creates a position owns it, so a sequence cannot go on in two places: one that lags behind finds that its own
last entry is gone.

At rest an entry is msgpack, `[1, <SHA-256 of the entry>, <entry>]`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ts_stateful.config.schema import StateConfig
from ts_stateful.store.base import Store, StoreCorrupt, StoreError, StoreUnavailable
from ts_stateful.store.ordered_calls import CallQueue

__all__ = [
    "Answered",
    "Entry",
    "Found",
    "LogPosition",
    "Value",
    "append",
    "find",
    "remove",
    "scope_of",
]

_VERSION = 1
_DIGITS = 8
_ENDED_S = 3600.0  # how long the answer to the last step of a sequence is kept


class Answered(Struct, frozen=True, array_like=True):
    """How requests were answered, so that they can be answered again: see `Event`."""

    request_ids: tuple[str, ...]
    body: bytes
    content_type: str | None = None
    opened_until: int | None = None
    closed: bool = False

    @property
    def repeatable(self) -> bytes | None:
        """The document with which a numbered step is answered when it is sent again; a raw answer has no place for that."""
        return self.body if self.content_type is None else None


class Entry(Struct, frozen=True, omit_defaults=True):
    """A sequence behind its step `number`, or opened without one. Times are seconds of Unix time.

    Either `states` names what it goes on from, or the step's `inputs` make it from what was there before. `earlier` are the
    answers before this one that may not have arrived; only an entry that stands alone has them. `writer` is a random id of
    the process: no two write the same bytes.
    """

    number: int
    answered: Answered
    opened_at: float
    expires_at: float
    at: float
    writer: str
    start: bool = False
    end: bool = False
    inputs: tuple[bytes, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    states: str | None = None
    lengths: tuple[int | None, ...] = ()
    metadata: dict[str, Any] = {}
    earlier: tuple[Answered, ...] = ()

    @property
    def stands_alone(self) -> bool:
        """Whether nothing before it is needed."""
        return self.states is not None or self.start or self.end or not self.number


class Value(NamedTuple):
    """Something in a store."""

    key: str
    data: bytes


@dataclass(eq=False)
class LogPosition:
    """Where a sequence stands in the store, as far as this process knows: what it writes next, and what is there."""

    recent: deque[Answered]
    position: int = 0
    num_since: int = 0  # entries from the last one on that stands alone
    keys: list[str] = field(default_factory=list)
    doubtful: Value | None = None  # an entry that may have been written
    has_hole: bool = False  # a write failed, and the sequence has gone on
    is_lost: bool = False  # a write failed, and the sequence does not go on
    line: CallQueue = field(default_factory=CallQueue)  # the calls of the store that are about it


class Found(NamedTuple):
    """What the store has of a sequence: the entries that count, and the states that the first of them names."""

    place: LogPosition
    entries: Sequence[Entry]
    states: Sequence[Tensor]


def scope_of(settings: StateConfig, model_dir: Path, name: str) -> str:
    """Where the sequences of a model are: its files count, its declarations, and the name under which it is served.

    Another program, other weights or other declarations have another scope, and find none of these sequences.
    """
    files = [settings.model.partition(":")[0], settings.weights]
    files += [state.initial_file for state in settings.states]
    digest = hashlib.sha256(name.encode())
    declared = (settings.model, settings.inputs, settings.outputs, settings.states)
    digest.update(msgspec.json.encode((declared, settings.arguments), order="sorted"))
    for file in files:
        if file is not None and (model_dir / file).is_file():
            with (model_dir / file).open("rb") as opened:
                while block := opened.read(2**20):
                    digest.update(block)
            digest.update(b";")
    return f"states-{digest.hexdigest()[:32]}"


def append(
    store: Store, prefix: str, place: LogPosition, entry: Entry, states: Sequence[Tensor] | None
) -> bool:
    """Writes an entry, with the states where it has some; False if the sequence belongs to somebody else.

    Raises:
        StoreUnavailable: it is unknown whether the entry is there.
    """
    if place.is_lost:
        return False  # what was asked for behind the write that failed
    ttl_s = _ENDED_S if entry.end else max(1.0, entry.expires_at - entry.at)
    made = []
    if states is not None:
        data = save_tensors({f"{i:04}": tensor.contiguous() for i, tensor in enumerate(states)})
        digest = hashlib.sha256(data).hexdigest()
        entry = structs.replace(entry, states=digest)
        made.append(f"{prefix}/{digest}")
        store.create(made[0], data, ttl_s)  # False: the states are what they were before
    place.doubtful = key, data = Value(_key(prefix, place.position), _encode(entry))
    if not store.create(key, data, ttl_s) and store.get(key) != data:
        return False
    if place.position and not place.has_hole:
        last = _key(prefix, place.position - 1)
        if store.get(last) is None:
            store.delete(key)  # somebody was here before, and has removed it from the beginning on
            return False
    place.position += 1
    place.doubtful, place.has_hole = None, False
    made.append(key)
    if entry.stands_alone:
        with contextlib.suppress(StoreError):  # what stays is removed the next time
            while place.keys:
                if place.keys[0] not in made:
                    store.delete(place.keys[0])
                del place.keys[0]
    place.keys += made
    return True


def find(store: Store, prefix: str, num_recent: int, doubtful: Value | None = None) -> Found:
    """What is there of a sequence; without entries if there is none. What is `doubtful` was taken back, and does not count.

    Raises:
        StoreCorrupt: something is missing or damaged.
        StoreUnavailable: as the store says.
    """
    if doubtful is not None and store.get(doubtful.key) == doubtful.data:
        store.delete(doubtful.key)
    keys = list(store.list(prefix))
    positions = [
        int(name) for name in (key[len(prefix) + 1 :] for key in keys) if _is_position(name)
    ]
    place = LogPosition(deque(maxlen=num_recent), keys=keys)
    entries: list[Entry] = []
    for position in reversed(positions):
        if entries and position != place.position - len(entries) - 1:
            break
        data = store.get(_key(prefix, position))
        if data is None:
            raise StoreUnavailable("a sequence went on while it was read", "read it again")
        place.position = place.position or position + 1
        entries.insert(0, _decode(data))
        if entries[0].stands_alone:
            return _found(store, prefix, place, entries)
    if entries:
        raise _damaged("its beginning is missing")
    return Found(place, (), ())


def remove(store: Store, prefix: str, left_at: LogPosition | None = None) -> None:
    """Removes a sequence; one that was `left_at` a place only if nobody has gone on from there.

    Raises:
        StoreUnavailable: as the store says.
    """
    if left_at is not None:
        if not left_at.position or store.get(_key(prefix, left_at.position - 1)) is None:
            return
        if store.get(_key(prefix, left_at.position)) is not None:
            return
    store.delete(prefix)


def _found(store: Store, prefix: str, place: LogPosition, entries: Sequence[Entry]) -> Found:
    place.recent.extend(entries[0].earlier)
    place.recent.extend(entry.answered for entry in entries)
    place.num_since = len(entries)
    digest, states = entries[0].states, []
    if digest is not None:
        data = store.get(f"{prefix}/{digest}")
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise _damaged("its states are not what was written")
        try:
            states = [tensor for _, tensor in sorted(load_tensors(data).items())]
        except SafetensorError as error:
            raise _damaged("its states cannot be read") from error
    return Found(place, entries, states)


def _key(prefix: str, position: int) -> str:
    return f"{prefix}/{position:0{_DIGITS}d}"


def _is_position(name: str) -> bool:
    return len(name) == _DIGITS and name.isdigit()


def _encode(entry: Entry) -> bytes:
    data = msgspec.msgpack.encode(entry)
    return msgspec.msgpack.encode((_VERSION, hashlib.sha256(data).digest(), data))


def _decode(data: bytes) -> Entry:
    try:
        version, digest, encoded = msgspec.msgpack.decode(data, type=tuple[int, bytes, bytes])
        if version != _VERSION:
            raise _damaged(f"it has version {version}")
        if hashlib.sha256(encoded).digest() != digest:
            raise _damaged("its checksum differs")
        return msgspec.msgpack.decode(encoded, type=Entry)
    except msgspec.DecodeError as error:
        raise _damaged("it cannot be read") from error


def _damaged(reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"a sequence in the store is damaged: {reason}",
        "begin it anew, and look at the disk or who else writes there",
    )
