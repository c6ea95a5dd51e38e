"""Steps of sequences in a store: log entries, and the states that they name.

Below `<scope>/<id>/` are the entries of a sequence, and states as safetensors files under their SHA-256. The last entry that
stands alone and those after it are the sequence. Entries before it have been removed, or will be.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ts_stateful.clock import Clock
from ts_stateful.config.schema import StateConfig
from ts_stateful.session_log.blobs import get_blob, put_blob
from ts_stateful.session_log.codec import Codec, Logged
from ts_stateful.session_log.journal import GRACE_S, LogPosition, Write, Written
from ts_stateful.session_log.log import Known, Log, SessionLog
from ts_stateful.session_log.ownership import ClosedEntry, Doubtful, SessionLogs
from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable

__all__ = [
    "Answered",
    "FoundSequence",
    "SequenceEntry",
    "SequencePosition",
    "SequenceRecords",
    "StepEntry",
    "scope_of",
]

_ENDED_S = 3600.0  # the answer to the last step of a sequence is kept for so long


class Answered(Struct, frozen=True, array_like=True):
    """The answer to requests, to be given again if they are repeated; see `Event`. `identity` is that of the step."""

    request_ids: tuple[str, ...]
    body: bytes
    content_type: str | None = None
    opened_until: int | None = None
    closed: bool = False
    identity: bytes = b""

    @property
    def repeatable(self) -> Answered | None:
        """The answer, if it can be given to a numbered step that is sent again: a raw one has no place for `replayed`."""
        return self if self.content_type is None else None


class StepEntry(Logged, frozen=True, tag="step"):
    """A sequence after its step `number`, or opened without one. Times are seconds of Unix time.

    Either `states` names the states after the step, or the step's `inputs` make them from those before it. `earlier` are the
    answers before this one that may not have arrived; only an entry that stands alone has them. `copied` is the answer to the
    last step of the source of a fork, in its first entry.
    """

    number: int
    answered: Answered
    opened_at: float
    expires_at: float
    at: float
    start: bool = False
    end: bool = False
    inputs: tuple[bytes, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    states: str | None = None
    lengths: tuple[int | None, ...] = ()
    metadata: dict[str, Any] = {}
    earlier: tuple[Answered, ...] = ()
    copied: Answered | UnsetType | None = UNSET

    @property
    def stands_alone(self) -> bool:
        """True if no entry before it is needed."""
        return self.states is not None or self.start or self.end or not self.number


SequenceEntry = StepEntry | ClosedEntry

_CODEC: Codec[SequenceEntry] = Codec(SequenceEntry, untagged=StepEntry)


@dataclass(eq=False)
class SequencePosition(LogPosition):
    """The log of one sequence, with the last answers; they are given again if their requests are repeated."""

    recent: deque[Answered] = field(default_factory=deque)
    num_since: int = 0  # entries from the last one on that stands alone


class FoundSequence(NamedTuple):
    """A sequence in the store: the entries that count, and the states that the first of them names."""

    position: SequencePosition
    entries: Sequence[StepEntry] = ()
    states: Sequence[Tensor] = ()


class SequenceRecords:
    """The sequences of one model in a store, below `scope`.

    The last `num_recent` answers of a sequence are kept. A sequence that is unused for `idle_s` seconds has expired.
    """

    def __init__(
        self, store: Store, scope: str, num_recent: int, idle_s: float, clock: Clock
    ) -> None:
        self.logs: SessionLogs[SequenceEntry] = SessionLogs(
            store, _CODEC, scope, adopted=f"{scope}-adopted"
        )
        self.writer = uuid.uuid4().hex
        self._clock = clock
        self._num_recent = num_recent
        self._idle_s = idle_s

    def new_position(self) -> SequencePosition:
        """Return the position in the log of a sequence that the store does not have."""
        return SequencePosition(recent=deque(maxlen=self._num_recent))

    def step(self, session_id: str, entry: StepEntry, states: Sequence[Tensor] | None) -> Write:
        """Record a step, with the states after it if there are some."""
        ttl_s = _ENDED_S if entry.end else max(0.0, entry.expires_at - entry.at) + GRACE_S
        log = self.logs.log(session_id)
        if states is None:
            alone = Written(entry)
            return Write(lambda position: alone, ttl_s, stand_alone=entry.stands_alone)

        def make(position: int) -> Written:
            named = {f"{i:04}": tensor.contiguous() for i, tensor in enumerate(states)}
            # With the position no two entries have the same file, so none is removed with another entry.
            data = save_tensors(named, {"position": str(position)})
            digest = put_blob(log.store, log.prefix, data, ttl_s)
            return Written(structs.replace(entry, states=digest), [f"{log.prefix}/{digest}"])

        return Write(make, ttl_s, stand_alone=True)

    def closed(self, reason: Literal["closed", "expired"]) -> ClosedEntry:
        """Record that a sequence ended."""
        return ClosedEntry(self._clock.unix(), reason, writer=self.writer)

    def find(
        self, session_id: str, doubtful: Doubtful | None, *, in_use: bool = False
    ) -> FoundSequence:
        """Adopt a sequence that goes on; without entries, there is none. For a thread of the store.

        A `doubtful` entry is taken back and does not count. A sequence that was `in_use` has not been idle.

        Raises:
            StoreCorrupt: something is missing or damaged.
            StoreUnavailable: see `Store`.
        """
        ownership = self.logs.ownership(session_id)
        if doubtful is not None:
            ownership.take_back(doubtful)
        make = partial(self._found, ownership.log, in_use)
        return ownership.adopt(make, writer=self.writer, stands_alone=_stands_alone)

    def _found(
        self, log: SessionLog[SequenceEntry], in_use: bool, read: Log[SequenceEntry]
    ) -> tuple[FoundSequence, float | None]:
        """Return the sequence and the seconds that it has left, or no sequence."""
        position = self.new_position()
        position.known, position.keys = read.known, list(read.keys)
        entries = [entry for entry in read.entries if isinstance(entry, StepEntry)]
        if not entries:  # none, or its removal was interrupted
            return FoundSequence(position), None
        first, last, now = entries[0], entries[-1], self._clock.unix()
        position.recent.extend(first.earlier)
        position.recent.extend(entry.answered for entry in entries)
        position.num_since = len(entries)
        idle_s = 0.0 if in_use else now - last.at
        if last.end:  # its answer is given again, or another sequence begins after it: it must stay
            return FoundSequence(position), _ENDED_S
        if now >= first.expires_at or idle_s >= self._idle_s:
            return FoundSequence(position), None
        states = _states(log, read.known, first.states)
        return FoundSequence(position, entries, states), first.expires_at - now + GRACE_S


def _states(log: SessionLog[SequenceEntry], known: Known, digest: str | None) -> Sequence[Tensor]:
    if digest is None:
        return ()
    data = get_blob(log.store, log.prefix, digest)
    if data is None and log.has_more(known):
        raise StoreUnavailable("a sequence changed while it was read", "read it again")
    try:
        return [tensor for _, tensor in sorted(load_tensors(data or b"").items())]
    except (SafetensorError, KeyError) as error:  # KeyError: a type of elements that torch lacks
        raise StoreCorrupt(
            "the states of a sequence are missing or cannot be read",
            "erase the sequence (`close` with `erase`); check the disk, and what else writes to the store",
        ) from error


def _stands_alone(entry: SequenceEntry) -> bool:
    return isinstance(entry, ClosedEntry) or entry.stands_alone


def scope_of(settings: StateConfig, model_dir: Path, name: str) -> str:
    """Return the prefix of a model's sequences. It depends on its files, its declarations and its `name`.

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
