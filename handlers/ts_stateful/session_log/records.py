"""What a session's log says: its entries, and their form at rest.

Owns the entries, their JSON with a version and a checksum, their keys, and what a whole log means. Knows no backend and no
model: token ids are numbers here, images are digests.

The log of a session is `sessions/<session id>/<position>`, with positions of 8 digits from 0: one `Opened`, then turns and
rewinds, at last perhaps `Closed`. Who creates a position owns it, so a session cannot go on in two places.

At rest an entry is `{"version":1,"sha256":"<hex>","entry":{...}}`, the checksum being that of the bytes of `entry`. A field
may be added to version 1 if readers may do without it; anything else is a new version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct, structs

from ts_stateful.protocol.answers import Timing, Usage
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.store.base import StoreCorrupt, StoreError

__all__ = [
    "VERSION",
    "Closed",
    "Entry",
    "FingerprintMismatch",
    "History",
    "ImageRef",
    "Message",
    "Opened",
    "Rewound",
    "Turn",
    "check_fingerprint",
    "decode",
    "encode",
    "entry_key",
    "history",
    "session_prefix",
    "without_text",
]

VERSION = 1
_MAX_POSITION = 10**8 - 1

Scalar = bool | int | float | str | None


class ImageRef(Struct, frozen=True, omit_defaults=True):
    """An image of a session, by the digests under which the store has it (see `blobs`)."""

    media: str | None = None  # the file that the client sent
    embeddings: str | None = None  # what the model's vision tower made of it
    key: str | None = None  # the engine's name for its content
    num_tokens: int = 0


class Message(Struct, frozen=True, array_like=True):
    """What somebody said, as the chat template got it: control tokens in `text` are marked, behind `num_images` images.

    Where texts and images come in another order, `parts` has it: texts, and a null for each image.
    """

    role: str
    text: str
    num_images: int = 0
    parts: tuple[str | None, ...] = ()


class Opened(Struct, frozen=True, tag="opened", tag_field="kind", omit_defaults=True):
    """The first entry. Times are seconds of Unix time.

    `fingerprint` names what the token ids and embeddings of the session mean something to: model, revision, dtype, template,
    processor. `writer` is a random id of the process that wrote the entry, here and below: with it no two processes ever
    write the same bytes.
    """

    fingerprint: dict[str, str]
    created_at: float
    expires_at: float
    ttl_s: float | None = None  # what the client asked for
    system: str | None = None
    images: tuple[ImageRef, ...] = ()
    metadata: dict[str, Any] = {}
    tenant: str | None = None
    token_ids: tuple[int, ...] = ()  # of the opening, where the template tells them
    messages: tuple[Message, ...] = ()
    origin: str = ""  # the request that asked for it; a server that took over knows it again when it is repeated
    writer: str = ""
    has_text: bool = True  # false: what was said is not written, see `without_text`


class Turn(Struct, frozen=True, tag="turn", tag_field="kind", omit_defaults=True):
    """A committed turn.

    The session's token ids are the first `keep` of those before the turn, then `prompt_ids` and `reply_ids`; its rendered
    conversation the first `keep_chars` characters of the one before, then `rendered`.
    """

    number: int
    reply: str
    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    finish_reason: str
    committed_at: float
    keep: int = 0
    keep_chars: int = 0
    rendered: str = ""
    seed: int | None = None
    sampling: dict[str, Scalar] = {}  # by the names of the protocol
    stop: tuple[str, ...] = ()
    images: tuple[ImageRef, ...] = ()
    messages: tuple[Message, ...] = ()
    usage: Usage = Usage()
    timing: Timing = Timing()
    origin: str = ""
    writer: str = ""
    has_text: bool = True


class Rewound(Struct, frozen=True, tag="rewound", tag_field="kind", omit_defaults=True):
    """The session went back to what it was after turn `to_turn`, 0 for its opening, which `blank` takes back as well."""

    to_turn: int
    at: float
    writer: str = ""
    blank: bool = False


class Closed(Struct, frozen=True, tag="closed", tag_field="kind", omit_defaults=True):
    """The last entry."""

    at: float
    writer: str = ""
    reason: Literal["closed", "expired"] = "closed"


Entry = Opened | Turn | Rewound | Closed


class History(NamedTuple):
    """What a log means: how the session was opened, the turns that count, and whether it is over."""

    opened: Opened
    turns: tuple[Turn, ...]
    closed: bool


class FingerprintMismatch(StoreError):
    """The session was made by another model, or by the same one set up differently."""


class _Head(Struct, frozen=True):
    version: int


class _Document(Struct, frozen=True):
    version: int
    sha256: str
    entry: Raw


_entry_decoder = msgspec.json.Decoder(Entry)
_head_decoder = msgspec.json.Decoder(_Head)
_document_decoder = msgspec.json.Decoder(_Document)


def session_prefix(session_id: str) -> str:
    """Below it is the log of a session.

    Raises:
        InvalidRequest: the id is `.` or `..`, which no folder can be called.
    """
    if session_id in (".", ".."):
        raise InvalidRequest(
            "a session that is stored cannot be called . or ..", field="session_id"
        )
    return f"sessions/{session_id}"


def entry_key(session_id: str, position: int) -> str:
    """The key of an entry; keys in order are positions in order."""
    assert 0 <= position <= _MAX_POSITION
    return f"{session_prefix(session_id)}/{position:08d}"


def encode(entry: Entry) -> bytes:
    """The entry at rest. The same entry always gives the same bytes."""
    raw = msgspec.json.encode(entry)
    document = _Document(VERSION, hashlib.sha256(raw).hexdigest(), Raw(raw))
    return msgspec.json.encode(document)


def decode(data: bytes) -> Entry:
    """The entry of these bytes.

    Raises:
        StoreCorrupt: they are cut short, changed, or of a version that is not known here.
    """
    try:
        version = _head_decoder.decode(data).version
        if version > VERSION:
            raise StoreCorrupt(
                f"an entry has version {version}, and this program knows up to {VERSION}",
                "it was written by a newer one; serve the session with that",
            )
        document = _document_decoder.decode(data)
        if version < 1:
            raise _damaged("it has no version")
        if hashlib.sha256(bytes(document.entry)).hexdigest() != document.sha256:
            raise _damaged("its checksum differs")
        entry: Entry = _entry_decoder.decode(document.entry)
        return entry
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged("it cannot be read") from error


def without_text(entry: Entry) -> Entry:
    """The entry without anything that was said, as text or as token ids: what is left is who did what, when and how much."""
    if isinstance(entry, Opened):
        return structs.replace(
            entry, has_text=False, system=None, metadata={}, tenant=None, token_ids=(), messages=()
        )
    if isinstance(entry, Turn):
        return structs.replace(
            entry,
            has_text=False,
            reply="",
            prompt_ids=(),
            reply_ids=(),
            rendered="",
            stop=(),
            messages=(),
        )
    return entry


def check_fingerprint(opened: Opened, own: Mapping[str, str]) -> None:
    """Passes if the session can go on with a model of the fingerprint `own`.

    Raises:
        FingerprintMismatch: a part differs; the message names each.
    """
    theirs = opened.fingerprint
    parts = [part for part in sorted({*theirs, *own}) if theirs.get(part) != own.get(part)]
    if parts:
        raise FingerprintMismatch(
            "; ".join(
                f"the session was made with {part} {theirs.get(part)}, this server has {own.get(part)}"
                for part in parts
            ),
            "serve it with what it was made with, or open a new session",
        )


def history(entries: Sequence[Entry]) -> History:
    """What a log says, from all of its entries in order, of which there is one at least.

    Raises:
        StoreCorrupt: they are no log: one does not follow the one before.
    """
    opened, *others = entries
    if not isinstance(opened, Opened):
        raise _damaged("it is no opening, but stands at position 0")
    turns: list[Turn] = []
    closed = False
    for entry in others:
        if isinstance(entry, Turn) and entry.number == len(turns) + 1 and not closed:
            turns.append(entry)
        elif isinstance(entry, Rewound) and 0 <= entry.to_turn <= len(turns) and not closed:
            del turns[entry.to_turn :]
            if entry.blank:
                opened = structs.replace(opened, messages=(), token_ids=(), images=())
        elif isinstance(entry, Closed) and not closed:
            closed = True
        else:
            raise _damaged("it does not follow the one before it")
    return History(opened, tuple(turns), closed)


def _damaged(reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"an entry of a session is damaged: {reason}",
        "the session cannot go on; close it, and look at the disk or who else writes there",
    )
