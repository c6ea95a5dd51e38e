"""The log entries of sessions of language models.

A log is one `OpenedEntry`, then turns, rewinds and discarded notes, and at last perhaps a `ClosedEntry`. What happens at once
is one `GroupEntry`. Times are seconds of Unix time. `origin` is the id of the request, which identifies a repeated one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, structs

from ts_stateful.language.conversation.history import Message
from ts_stateful.protocol.answers import Timing, Usage
from ts_stateful.protocol.chat import Parsing
from ts_stateful.protocol.errors import SessionNotFound
from ts_stateful.protocol.logprobs import TokenLogprob
from ts_stateful.session_log.codec import Codec, Logged
from ts_stateful.session_log.ownership import ClosedEntry, SessionLogs
from ts_stateful.store.base import Store, StoreCorrupt

__all__ = [
    "DiscardedEntry",
    "GroupEntry",
    "History",
    "ImageRef",
    "LogEntry",
    "OpenedEntry",
    "Part",
    "RewoundEntry",
    "TurnEntry",
    "check_fingerprint",
    "history",
    "session_logs",
    "time_of",
    "ungrouped",
    "without_text",
]


class ImageRef(Struct, frozen=True, omit_defaults=True):
    """An image of a session."""

    embeddings: str | None = None  # digest of a blob: the output of the vision tower
    key: str | None = None  # the engine's name for its content
    num_tokens: int = 0


class OpenedEntry(Logged, frozen=True, tag="opened"):
    """The first entry. `fingerprint` names the model that the token ids and embeddings belong to."""

    fingerprint: dict[str, str]
    created_at: float
    expires_at: float
    images: tuple[ImageRef, ...] = ()
    metadata: dict[str, Any] = {}
    token_ids: tuple[int, ...] = ()  # of the opening, if the template determines them
    messages: tuple[Message, ...] = ()
    origin: str = ""
    has_text: bool = True  # see `without_text`
    adapter: str | None = None  # its name; its digest is in `fingerprint`


class TurnEntry(Logged, frozen=True, tag="turn"):
    """A committed turn.

    The session's token ids are the first `keep` ones before the turn, then `prompt_ids` and `reply_ids`. Its rendered
    conversation is the first `keep_chars` characters of the earlier one, then `rendered`.
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
    images: tuple[ImageRef, ...] = ()
    messages: tuple[Message, ...] = ()
    usage: Usage = Usage()
    timing: Timing = Timing()
    origin: str = ""
    has_text: bool = True
    logprobs: tuple[TokenLogprob, ...] = ()
    parsing: Parsing | None = None
    note: str = ""
    has_reply: bool = True
    copied: bool = False


class RewoundEntry(Logged, frozen=True, tag="rewound"):
    """A return to the end of turn `to_turn`; 0 is the opening, which `blank` takes back as well."""

    to_turn: int
    at: float
    blank: bool = False


class DiscardedEntry(Logged, frozen=True, tag="discarded"):
    """The end of a turn's note; the turn stays in the history."""

    turn: int
    at: float


Part = OpenedEntry | TurnEntry | RewoundEntry | DiscardedEntry


class GroupEntry(Logged, frozen=True, tag="group"):
    """Several entries that are written at once: a fork is never seen without its turns."""

    entries: Annotated[tuple[Part, ...], Meta(min_length=1)]


# See `without_text`.
_WITHOUT: dict[str, Any] = {
    "prompt_ids": (),
    "reply_ids": (),
    "messages": (),
    "logprobs": (),
    "parsing": None,
    "note": "",
    "reply": "",
    "rendered": "",
    "has_text": False,
}

LogEntry = Part | GroupEntry | ClosedEntry

_CODEC: Codec[LogEntry] = Codec(LogEntry)


class History(NamedTuple):
    """The meaning of a log: the opening, and the turns that count."""

    opened: OpenedEntry
    turns: tuple[TurnEntry, ...]


def session_logs(store: Store) -> SessionLogs[LogEntry]:
    """Return the logs of sessions in a store."""
    return SessionLogs(store, _CODEC, "sessions", "adopted", "ended", "kv")


def time_of(entry: LogEntry) -> float:
    """Return the time of an entry, of a group its last one's."""
    if isinstance(entry, GroupEntry):
        return time_of(entry.entries[-1])
    if isinstance(entry, OpenedEntry):
        return entry.created_at
    return entry.committed_at if isinstance(entry, TurnEntry) else entry.at


def without_text(entry: Part) -> Part:
    """Return the entry without text and token ids: times, turns, usage and ids of requests are left."""
    if isinstance(entry, OpenedEntry):
        return structs.replace(entry, has_text=False, metadata={}, token_ids=(), messages=())
    if isinstance(entry, TurnEntry):
        return structs.replace(entry, **_WITHOUT)
    return entry


def check_fingerprint(opened: OpenedEntry, own: Mapping[str, str]) -> None:
    """Raise `SessionNotFound` if the session belongs to another model; the message names each part that differs."""
    theirs = opened.fingerprint
    parts = [part for part in sorted({*theirs, *own}) if theirs.get(part) != own.get(part)]
    if parts:
        raise SessionNotFound(
            "; ".join(
                f"the session was made with {part} {theirs.get(part)}, this server has {own.get(part)}"
                for part in parts
            ),
            field="session_id",
        )


def ungrouped(entries: Iterable[LogEntry]) -> Iterator[Part | ClosedEntry]:
    """Return the entries in their order, those of groups too."""
    for entry in entries:
        if isinstance(entry, GroupEntry):
            yield from entry.entries
        else:
            yield entry


def history(entries: Sequence[LogEntry]) -> History:
    """Return the meaning of all entries of an open session's log, of which there is at least one.

    Raises:
        StoreCorrupt: an entry does not follow from the one before it.
    """
    opened, *others = ungrouped(entries)
    if not isinstance(opened, OpenedEntry):
        raise _damaged("it does not begin with an opening")
    turns: list[TurnEntry] = []
    for entry in others:
        if isinstance(entry, TurnEntry) and entry.number == len(turns) + 1:
            turns.append(entry)
        elif isinstance(entry, DiscardedEntry) and 0 < entry.turn <= len(turns):
            turns[entry.turn - 1] = structs.replace(turns[entry.turn - 1], note="")
        elif isinstance(entry, RewoundEntry) and 0 <= entry.to_turn <= len(turns):
            del turns[entry.to_turn :]
            if entry.blank:
                opened = structs.replace(opened, messages=(), token_ids=(), images=())
        else:
            raise _damaged("an entry does not follow from the one before it")
    return History(opened, tuple(turns))


def _damaged(reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the log of a session is damaged: {reason}",
        "erase the session (`close` with `erase`); check the disk, and what else writes to the store",
    )
