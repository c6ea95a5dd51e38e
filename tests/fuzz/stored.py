"""Parsers of what a store gives back, as functions of bytes."""

from __future__ import annotations

import hashlib

import msgspec
import torch

from tests.support.clock import FakeClock
from tests.support.memory_store import MemoryStore
from ts_stateful.language.persistence.entries import ImageRef, LogEntry, history, session_logs
from ts_stateful.language.persistence.image_records import load_image
from ts_stateful.recurrent.step_records import Answered, SequenceEntry, SequenceRecords, StepEntry
from ts_stateful.session_log.codec import VERSION, Codec
from ts_stateful.session_log.log import SessionLog

__all__ = ["entry", "log", "sequence", "stored_image"]

_LIFE_S = 60.0
_MAX_ENTRIES = 9
_SESSION_ENTRIES: Codec[LogEntry] = Codec(LogEntry)
_SEQUENCE_ENTRIES: Codec[SequenceEntry] = Codec(SequenceEntry, untagged=StepEntry)


def entry(data: bytes) -> object:
    """Read a value in the place of an entry, with whatever checksum it has."""
    return _SESSION_ENTRIES.decode(data) if data[:1] == b"{" else _SEQUENCE_ENTRIES.decode(data)


def log(data: bytes) -> object:
    """Read a log of entries whose checksums and links are right, and what it means. An empty line is between entries."""
    store, previous = MemoryStore(), b""
    for number, content in enumerate(data.split(b"\n\n")[:_MAX_ENTRIES]):
        digest = hashlib.sha256(previous + content).digest()
        at_rest = msgspec.msgpack.encode((VERSION, digest, content, previous))
        store.create(f"sessions/s/{number:08}", at_rest)
        previous = hashlib.sha256(at_rest).digest()
    logs = session_logs(store)
    found = logs.log("s").read()
    logs.ownership("s").check_open(found)
    return history(found.entries)


def sequence(data: bytes) -> object:
    """Restore a sequence whose states are in a file of the right digest."""
    clock, store = FakeClock(), MemoryStore()
    records = SequenceRecords(store, "states", 1, _LIFE_S, clock)
    now, digest = clock.unix(), hashlib.sha256(data).hexdigest()
    step = StepEntry(1, Answered(("r",), b"{}"), now, now + _LIFE_S, now, writer="w", states=digest)
    steps: SessionLog[SequenceEntry] = records.logs.log("s")
    store.create(steps.key(0), steps.codec.encode(step))
    store.create(f"{steps.prefix}/{digest}", data)
    return records.find("s", None)


def stored_image(data: bytes) -> object:
    """Restore an image of a session from a file of the right digest."""
    store, digest = MemoryStore(), hashlib.sha256(data).hexdigest()
    session_log = session_logs(store).log("s")
    store.create(f"{session_log.prefix}/{digest}", data)
    found = load_image(session_log, ImageRef(digest, "k", 1), torch.device("cpu"))
    assert all(isinstance(token_id, int) for token_id in found.ids)
    return found
