"""What a session's log says."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.protocol.answers import Timing, TokenDetails, Usage
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.session_log.records import (
    Closed,
    Entry,
    FingerprintMismatch,
    History,
    ImageRef,
    Message,
    Opened,
    Rewound,
    Turn,
    check_fingerprint,
    decode,
    encode,
    entry_key,
    history,
    session_prefix,
)
from ts_stateful.store.base import StoreCorrupt, check_key

OPENED = Opened(
    fingerprint={"model": "llava", "revision": "abc", "dtype": "bfloat16"},
    created_at=1.5,
    expires_at=3601.5,
    ttl_s=3600.0,
    system="Be brief.\n\u2028 \U0001f600",
    images=(ImageRef(media="a" * 64, embeddings="b" * 64, key="c" * 64, num_tokens=576),),
    metadata={"tenant": "t", "nested": [1, {"a": None}]},
    tenant="t",
    token_ids=(1, 2, 3),
    writer="w",
)


def turn(number: int, **changes: Any) -> Turn:
    """A turn that says everything."""
    values: dict[str, Any] = {
        "number": number,
        "reply": "A square.",
        "prompt_ids": (4, 5, 6),
        "reply_ids": (7, 128_255),
        "finish_reason": "stop",
        "committed_at": 12.25,
        "keep": 3,
        "keep_chars": 10,
        "rendered": "<user>",
        "seed": 2**63 - 1,
        "sampling": {"temperature": 0.7, "top_k": 5, "ignore_eos": False},
        "stop": ("\n\n",),
        "images": (ImageRef(media="d" * 64),),
        "messages": (Message("user", "What is it?", 1, (None, "What is it?")),),
        "origin": "r",
        "usage": Usage(10, 2, TokenDetails(3)),
        "timing": Timing(queue_ms=0.1, restored_from="store"),
        "writer": "w",
    }
    return Turn(**{**values, **changes})


ENTRIES: list[Entry] = [OPENED, turn(1), Rewound(to_turn=0, at=2.0, writer="w"), Closed(at=3.0)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    """The same entry always gives the same bytes, and these give the entry."""
    assert decode(encode(entry)) == entry
    assert encode(decode(encode(entry))) == encode(entry)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 2**32 - 1)))
def test_any_text_and_ids_come_back(text: str, ids: list[int]) -> None:
    """Whatever a user or a model says."""
    said = (Message("user", text),)
    entry = turn(1, messages=said, reply=text, prompt_ids=tuple(ids), reply_ids=tuple(ids))
    assert decode(encode(entry)) == entry


def test_the_form_at_rest_is_as_it_is_written_down() -> None:
    """JSON with a version, a checksum and the entry, in that order."""
    data = encode(Closed(at=3.0))
    assert re.fullmatch(
        r'\{"version":1,"sha256":"[0-9a-f]{64}","entry":\{"kind":"closed","at":3\.0\}\}',
        data.decode(),
    )


def test_every_flipped_bit_is_found() -> None:
    """No change of a bit passes for the entry, or for another one."""
    data = encode(turn(1))
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(StoreCorrupt):
                decode(bytes(changed))


def test_every_truncation_is_found() -> None:
    """As is something behind the end."""
    data = encode(OPENED)
    for length in range(len(data)):
        with pytest.raises(StoreCorrupt):
            decode(data[:length])
    with pytest.raises(StoreCorrupt):
        decode(data + data)


@pytest.mark.parametrize(
    "data", [b"\x80\x04.", b"null", b"[]", b"{}", b'{"version":true}', b"\xff"]
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    """A pickle for instance is never run."""
    with pytest.raises(StoreCorrupt, match="close it"):
        decode(data)


def test_an_entry_of_a_newer_version_is_refused() -> None:
    """With the versions in the message, even if nothing else of it is known."""
    with pytest.raises(StoreCorrupt, match=r"version 2, and this program knows up to 1.*newer"):
        decode(b'{"version":2,"form":"unknown"}')


def test_a_field_that_was_added_is_passed_over() -> None:
    """A later program of the same version may say more."""
    document = json.loads(encode(Closed(at=3.0)))
    raw = '{"kind":"closed","at":3.0,"later":"said"}'
    digest = hashlib.sha256(raw.encode()).hexdigest()
    data = f'{{"version":{document["version"]},"sha256":"{digest}","entry":{raw}}}'
    assert decode(data.encode()) == Closed(at=3.0)


def test_keys_in_order_are_positions_in_order() -> None:
    """And every session id that a client may choose makes a key, except the two that no folder can have."""
    keys = [entry_key("a", position) for position in (0, 9, 10, 99_999_999)]
    assert keys == sorted(keys)
    assert keys[0] == f"{session_prefix('a')}/00000000"
    assert check_key(entry_key("x" * 226, 0))
    for session_id in (".", ".."):
        with pytest.raises(InvalidRequest):
            session_prefix(session_id)


def test_another_fingerprint_is_named() -> None:
    """Each part that differs is in the message, with both values; one that is missing differs."""
    check_fingerprint(OPENED, dict(OPENED.fingerprint))
    own = {"model": "llava", "revision": "abd", "template": "x"}
    with pytest.raises(FingerprintMismatch) as caught:
        check_fingerprint(OPENED, own)
    told = str(caught.value)
    assert "dtype bfloat16, this server has None" in told
    assert "revision abc, this server has abd" in told
    assert "template None, this server has x" in told
    assert "model" not in told.split("revision", maxsplit=1)[0]


def test_a_log_means_its_turns() -> None:
    """A rewind takes back the turns behind it; others may follow; nothing follows the end."""
    log: list[Entry] = [
        OPENED,
        turn(1),
        turn(2),
        turn(3),
        Rewound(1, at=5.0),
        turn(2, reply="Other"),
    ]
    assert history(log) == History(OPENED, (turn(1), turn(2, reply="Other")), closed=False)
    assert history([*log, Closed(at=6.0)]).closed
    assert history([OPENED, turn(1), Rewound(0, at=5.0)]).turns == ()


@pytest.mark.parametrize(
    "log",
    [
        [turn(1)],
        [OPENED, turn(2)],
        [OPENED, turn(1), turn(1)],
        [OPENED, OPENED],
        [OPENED, Rewound(1, at=5.0)],
        [OPENED, Rewound(-1, at=5.0)],
        [OPENED, Closed(at=6.0), turn(1)],
        [OPENED, Closed(at=6.0), Closed(at=6.0)],
        [OPENED, Closed(at=6.0), Rewound(0, at=7.0)],
    ],
)
def test_entries_that_do_not_follow_are_no_log(log: list[Entry]) -> None:
    """Such as a turn that is missing or there twice."""
    with pytest.raises(StoreCorrupt):
        history(log)


def test_every_field_is_written_down(repository: Path) -> None:
    """docs/store.md names each field of each entry."""
    text = (repository / "docs" / "store.md").read_text()
    for kind in (Opened, Turn, Rewound, Closed, ImageRef):
        assert [f for f in kind.__struct_fields__ if f"`{f}`" not in text] == []
