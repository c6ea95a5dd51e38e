"""The form of log entries at rest."""

from __future__ import annotations

import hashlib
import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.language.persistence.test_entries import ENTRIES, OPENED, turn
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.persistence.entries import LogEntry
from ts_stateful.recurrent.step_records import Answered, StepEntry
from ts_stateful.session_log.codec import VERSION, Codec, Linked
from ts_stateful.session_log.ownership import ClosedEntry
from ts_stateful.store.base import StoreCorrupt

CODEC: Codec[LogEntry] = Codec(LogEntry)
CLOSED = ClosedEntry(at=3.0)
STEP = StepEntry(2, Answered(("r",), b"{}"), 1.0, 9.0, 2.0, writer="w", inputs=(b"\x00\xff",))


def at_rest(version: object, entry: bytes) -> bytes:
    """Return an entry of a version without links."""
    return msgspec.msgpack.encode((version, hashlib.sha256(entry).digest(), entry))


def linked(version: int, entry: bytes, previous: bytes) -> bytes:
    digest = hashlib.sha256(previous + entry).digest()
    return msgspec.msgpack.encode((version, digest, entry, previous))


def old_json(raw: str, version: int = 1) -> bytes:
    digest = hashlib.sha256(raw.encode()).hexdigest()
    return f'{{"version":{version},"sha256":"{digest}","entry":{raw}}}'.encode()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_comes_back_as_it_was(entry: LogEntry) -> None:
    """The same entry always gives the same bytes, and these give the entry."""
    assert CODEC.decode(CODEC.encode(entry)) == entry
    assert CODEC.encode(CODEC.decode(CODEC.encode(entry))) == CODEC.encode(entry)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 2**32 - 1)))
def test_any_text_and_ids_come_back(text: str, ids: list[int]) -> None:
    """Users and models may send anything."""
    said = (Message("user", text),)
    entry = turn(1, messages=said, reply=text, prompt_ids=tuple(ids), reply_ids=tuple(ids))
    assert CODEC.decode(CODEC.encode(entry)) == entry


def test_the_form_at_rest_is_as_it_is_written_down() -> None:
    """Msgpack of a version, a checksum, the entry, and the digest of what is before it, in that order."""
    raw = msgspec.msgpack.encode({"kind": "closed", "at": 3.0})
    assert CODEC.encode(CLOSED) == linked(4, raw, b"")
    assert CODEC.encode(CLOSED, b"d" * 32) == linked(4, raw, b"d" * 32)
    assert CODEC.decode_linked(CODEC.encode(CLOSED, b"d" * 32)) == Linked(CLOSED, b"d" * 32)


def test_versions_2_and_3_are_read() -> None:
    """Version 2 had no link."""
    raw = msgspec.msgpack.encode({"kind": "closed", "at": 3.0})
    assert CODEC.decode_linked(at_rest(2, raw)) == Linked(CLOSED, None)
    assert CODEC.decode_linked(linked(3, raw, b"d" * 32)) == Linked(CLOSED, b"d" * 32)


@pytest.mark.parametrize("previous", [b"", b"d" * 32])
def test_every_flipped_bit_is_found(previous: bytes) -> None:
    """No change of a bit passes for the entry, or for another one."""
    data = CODEC.encode(turn(1), previous)
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(StoreCorrupt):
                CODEC.decode(bytes(changed))


def test_every_truncation_is_found() -> None:
    """As is something after the end."""
    data = CODEC.encode(OPENED)
    for length in range(len(data)):
        with pytest.raises(StoreCorrupt):
            CODEC.decode(data[:length])
    with pytest.raises(StoreCorrupt):
        CODEC.decode(data + data)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x80\x04.", b"null", b"[]", b"{}", b'{"version":true}', b"\xff", b"", b"\x90"),
        *(b"\x91" * 100_000, b'{"a":' + b"[" * 100_000, at_rest(VERSION, b"\x91" * 100_000)),
        *(at_rest(version, b"\x80") for version in (0, 1, True, None, "2", 3, 4)),
        msgspec.msgpack.encode((3, b"", b"\x80", b"", b"")),
        old_json('{"kind":"closed","at":3.0}', version=2),
    ],
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    """A pickle for instance is never run."""
    with pytest.raises(StoreCorrupt, match="erase the session"):
        CODEC.decode(data)


def test_an_array_of_many_parts_is_refused_before_they_are_made() -> None:
    """Each would take 64 bytes for one of the data."""
    data = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x01" * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(StoreCorrupt, match="cannot be read"):
            CODEC.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_newer_version_is_refused() -> None:
    """The error names both versions and what to do, whatever the form of the newer one."""
    for data in (at_rest(VERSION + 1, b"\x80"), msgspec.msgpack.encode((VERSION + 1, "other"))):
        with pytest.raises(StoreCorrupt, match=r"has version 5, .* up to 4: update this server"):
            CODEC.decode(data)


def test_a_field_that_was_added_is_passed_over() -> None:
    """A later program of the same version may write more."""
    raw = msgspec.msgpack.encode({"kind": "closed", "at": 3.0, "later": "added"})
    assert CODEC.decode(linked(VERSION, raw, b"")) == CLOSED


def test_json_of_version_1_is_read() -> None:
    """Entries of language models had this form, and fields that were dropped since."""
    raw = json.loads(msgspec.json.encode(turn(1))) | {"seed": 5, "sampling": {}, "stop": ["."]}
    assert CODEC.decode(old_json(json.dumps(raw))) == turn(1)
    changed = old_json('{"kind":"closed","at":3.0}').replace(b"3.0", b"4.0")
    with pytest.raises(StoreCorrupt, match="checksum"):
        CODEC.decode(changed)


def test_entries_of_version_1_without_tags_are_read() -> None:
    """Those of recurrent models were always steps."""
    codec: Codec[StepEntry | ClosedEntry] = Codec(StepEntry | ClosedEntry, untagged=StepEntry)
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(STEP))
    assert raw.pop("kind") == "step"
    assert codec.decode(at_rest(1, msgspec.msgpack.encode(raw))) == STEP
    with pytest.raises(StoreCorrupt, match="version is 1"):
        CODEC.decode(at_rest(1, msgspec.msgpack.encode(raw)))
    assert codec.decode(codec.encode(STEP)) == STEP
