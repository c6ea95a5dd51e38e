"""The log entries of sessions of language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_store import MemoryStore
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.persistence.entries import (
    GroupEntry,
    History,
    ImageRef,
    LogEntry,
    OpenedEntry,
    RewoundEntry,
    TurnEntry,
    check_fingerprint,
    history,
    session_logs,
    time_of,
)
from ts_stateful.protocol.answers import Timing, TokenDetails, Usage
from ts_stateful.protocol.chat import Parsing, Tool
from ts_stateful.protocol.errors import SessionNotFound
from ts_stateful.protocol.logprobs import TokenLogprob
from ts_stateful.session_log.ownership import ClosedEntry
from ts_stateful.store.base import StoreCorrupt, check_key

OPENED = OpenedEntry(
    fingerprint={"model": "llava", "revision": "abc", "dtype": "bfloat16"},
    created_at=1.5,
    expires_at=3601.5,
    images=(ImageRef(embeddings="b" * 64, key="c" * 64, num_tokens=576),),
    metadata={"tenant": "t", "nested": [1, {"a": None}]},
    token_ids=(1, 2, 3),
    writer="w",
)


def turn(number: int, **changes: Any) -> TurnEntry:
    """A turn with every field."""
    values: dict[str, Any] = {
        "number": number,
        "reply": "A square.",
        "prompt_ids": (4, 5, 6),
        "reply_ids": (7, 128_255),
        "finish_reason": "stop",
        "committed_at": 12.25,
        "keep": 3,
        "keep_chars": 10,
        "rendered": "<user>\n\u2028 \U0001f600",
        "images": (ImageRef(embeddings="d" * 64),),
        "messages": (Message("user", "What is it?", 1, (None, "What is it?")),),
        "origin": "r",
        "usage": Usage(10, 2, TokenDetails(3)),
        "timing": Timing(queue_ms=0.1, restored_from="store"),
        "writer": "w",
        "parsing": Parsing("<think>", (Tool("f", "", {"type": "object"}),)),
        "logprobs": (TokenLogprob(7, 2, -0.5, ((7, -0.5), (8, -1.25))),),
    }
    return TurnEntry(**{**values, **changes})


ENTRIES: list[LogEntry] = [
    OPENED,
    turn(1),
    RewoundEntry(to_turn=0, at=2.0, writer="w"),
    GroupEntry((RewoundEntry(to_turn=0, at=2.0), turn(1))),
    ClosedEntry(at=3.0),
]


def test_keys_in_order_are_positions_in_order() -> None:
    """And every session id that a client may choose makes a key."""
    log = session_logs(MemoryStore()).log("a")
    keys = [log.key(position) for position in (0, 9, 10, 99_999_999)]
    assert keys == sorted(keys)
    assert keys[0] == "sessions/a/00000000"
    assert check_key(session_logs(MemoryStore()).log("x" * 226).key(0))


def test_another_fingerprint_is_named() -> None:
    """Each part that differs is in the message, with both values; one that is missing differs."""
    check_fingerprint(OPENED, dict(OPENED.fingerprint))
    own = {"model": "llava", "revision": "abd", "template": "x"}
    with pytest.raises(SessionNotFound) as caught:
        check_fingerprint(OPENED, own)
    message = str(caught.value)
    assert "dtype bfloat16, this server has None" in message
    assert "revision abc, this server has abd" in message
    assert "template None, this server has x" in message
    assert "model" not in message.split("revision", maxsplit=1)[0]


def test_a_log_means_its_turns() -> None:
    """A rewind takes back the turns after it; others may follow; nothing follows the end."""
    log: list[LogEntry] = [
        OPENED,
        turn(1),
        turn(2),
        turn(3),
        RewoundEntry(1, at=5.0),
        turn(2, reply="Other"),
    ]
    assert history(log) == History(OPENED, (turn(1), turn(2, reply="Other")))
    assert history([OPENED, turn(1), RewoundEntry(0, at=5.0)]).turns == ()


def test_a_group_means_its_entries() -> None:
    """In their order; its time is that of the last one."""
    group = GroupEntry((OPENED, turn(1)))
    assert history([group, turn(2)]) == History(OPENED, (turn(1), turn(2)))
    assert history([group, GroupEntry((RewoundEntry(0, at=5.0), turn(1)))]).turns == (turn(1),)
    assert time_of(group) == turn(1).committed_at


@pytest.mark.parametrize(
    "log",
    [
        [turn(1)],
        [OPENED, turn(2)],
        [OPENED, turn(1), turn(1)],
        [OPENED, OPENED],
        [OPENED, RewoundEntry(1, at=5.0)],
        [OPENED, RewoundEntry(-1, at=5.0)],
        [OPENED, ClosedEntry(at=6.0), turn(1)],
        [OPENED, ClosedEntry(at=6.0), ClosedEntry(at=6.0)],
        [OPENED, ClosedEntry(at=6.0), RewoundEntry(0, at=7.0)],
    ],
)
def test_entries_that_do_not_follow_are_no_log(log: list[LogEntry]) -> None:
    """Such as a turn that is missing or there twice."""
    with pytest.raises(StoreCorrupt):
        history(log)


def test_every_field_is_written_down(repository: Path) -> None:
    """docs/store.md names each field of each entry."""
    text = (repository / "docs" / "store.md").read_text()
    for kind in (OpenedEntry, TurnEntry, RewoundEntry, GroupEntry, ClosedEntry, ImageRef):
        assert [f for f in kind.__struct_fields__ if f"`{f}`" not in text] == []
