"""The sessions that a browser remembers. Its replies are not among them: the server has these."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExpired

__all__ = [
    "SavedSession",
    "SavedTurn",
    "SessionState",
    "is_clip",
    "key_prefix",
    "parse_saved",
    "state_after",
]

SessionState = Literal["open", "expired", "closed", "unknown"]
_TITLE_CHARS = 60
_MOST_CHARS = 10_000  # of a prompt or a source: the store of a browser has some millions for all
_CLIPS = (".wav", ".flac")  # the formats that servers take


class SavedTurn(Struct, frozen=True):
    """The user's part of a turn. `files` are paths of uploads, or URLs."""

    prompt: str
    files: tuple[str, ...] = ()

    @classmethod
    def cut(cls, prompt: str, files: tuple[str, ...]) -> SavedTurn:
        """Return a turn to save; what is very long in it is cut."""
        short = prompt if len(prompt) <= _MOST_CHARS else f"{prompt[:_MOST_CHARS]}..."
        return cls(short, tuple(source[:_MOST_CHARS] for source in files))


class SavedSession(Struct, frozen=True, kw_only=True):
    """A session: `at` is the time of its last turn in seconds of the Unix clock, `fork_of` the session it was forked from."""

    id: str
    at: float
    turns: tuple[SavedTurn, ...] = ()
    fork_of: str | None = None
    state: SessionState = "open"

    @property
    def title(self) -> str:
        """Return the beginning of the first prompt."""
        text = " ".join(self.turns[0].prompt.split()) if self.turns else ""
        short = text if len(text) <= _TITLE_CHARS else f"{text[:_TITLE_CHARS].rstrip()}..."
        return short or f"Session {self.id[:8]}"


def is_clip(source: str) -> bool:
    """Return True if a file, or the URL of one, is a clip of audio by its name."""
    return source.lower().endswith(_CLIPS) or source.startswith("data:audio/")


def parse_saved(documents: Iterable[Any]) -> list[SavedSession]:
    """Return the sessions among what a browser has kept, the latest first; anything else is left out."""
    sessions = []
    for document in documents:
        try:
            sessions.append(msgspec.convert(document, SavedSession))
        except msgspec.ValidationError:
            continue
    return sorted(sessions, key=lambda session: session.at, reverse=True)


def state_after(error: SessionError) -> SessionState | None:
    """Return the state of a session of which a server reports this error; None if it goes on."""
    if isinstance(error, SessionExpired):
        return "expired"
    if isinstance(error, SessionClosed):
        return "closed"
    return "unknown" if error.status == 404 else None


def key_prefix(url: str, model: str, headers: Iterable[tuple[str, str]], token: str | None) -> str:
    """Return the beginning of a browser's keys: sessions of another model or caller at the URL have others."""
    callers = [(name.lower(), _subject(value) or value) for name, value in headers]
    facts = json.dumps([model, sorted(callers), _subject(token or "")])
    return f"ts-stateful:{url} {hashlib.sha256(facts.encode()).hexdigest()[:16]} "


def _subject(token: str) -> str | None:
    """Return the subject of a signed token, which stays when it is renewed; None for any other text."""
    try:
        claims = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
        return f"{claims['sub']} {claims['iss']}"
    except (IndexError, KeyError, TypeError, ValueError):
        return None
