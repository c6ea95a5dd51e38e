"""The sessions that a browser remembers."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from ts_stateful.cli.web.saved import (
    SavedSession,
    SavedTurn,
    is_clip,
    key_prefix,
    parse_saved,
    state_after,
)
from ts_stateful.protocol.errors import (
    QueueFull,
    SessionClosed,
    SessionError,
    SessionExpired,
    SessionNotFound,
)


def test_what_a_browser_has_kept_is_checked() -> None:
    """Sessions come back, the latest first; what is none is left out."""
    old, new = (SavedSession(id=name, at=at) for name, at in (("old", 1.0), ("new", 2.0)))
    kept = [msgspec.to_builtins(one) for one in (old, new)]
    assert parse_saved([*kept, {}, "x", None, {"id": "a", "at": 1, "state": "odd"}]) == [new, old]


def test_what_is_very_long_is_cut() -> None:
    """The store of a browser is small; so a long question and the data of a picture are saved in part."""
    saved = SavedTurn.cut("a" * 10_001, ("b" * 20_000,))
    assert saved == SavedTurn("a" * 10_000 + "...", ("b" * 10_000,))
    assert SavedTurn.cut("a", ("b",)) == SavedTurn("a", ("b",))


def test_a_session_is_named_by_its_first_prompt() -> None:
    """A title is one line of 60 characters; without a prompt it is the beginning of the id."""
    turns = (SavedTurn("a \n b" + "c" * 100),)
    assert SavedSession(id="x", at=0, turns=turns).title == "a b" + "c" * 57 + "..."
    assert SavedSession(id="0123456789", at=0).title == "Session 01234567"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SessionExpired("x"), "expired"),
        (SessionClosed("x"), "closed"),
        (SessionNotFound("x"), "unknown"),
        (QueueFull("x"), None),
    ],
)
def test_an_error_shows_how_a_session_ended(error: SessionError, state: str | None) -> None:
    """Expired, closed and unknown sessions have ended; a busy one has not."""
    assert state_after(error) == state


def test_clips_are_known_by_name() -> None:
    """WAV and FLAC are clips, as files, URLs and data; anything else is a picture."""
    assert all(map(is_clip, ("a.WAV", "https://example.com/a.flac", "data:audio/wav;base64,AA")))
    assert not any(map(is_clip, ("a.png", "data:image/png;base64,AA", "wav")))


def token_of(**claims: object) -> str:
    """Return a token with these claims, whose signature nobody checks here."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.x"


def test_sessions_of_other_models_and_callers_have_other_keys() -> None:
    """A token that was renewed is the same caller's; a key of TorchServe names none."""
    alice = token_of(sub="alice", iss="i", exp=1)
    prefixes = [
        key_prefix("grpc://a", "chat", [], None),
        key_prefix("grpc://b", "chat", [], None),
        key_prefix("grpc://a", "other", [], None),
        key_prefix("grpc://a", "chat", [("X-Principal", "alice")], None),
        key_prefix("grpc://a", "chat", [("X-Principal", "bob")], None),
        key_prefix("grpc://a", "chat", [], alice),
        key_prefix("grpc://a", "chat", [], token_of(sub="bob", iss="i", exp=1)),
    ]
    assert len({*prefixes}) == len(prefixes)
    assert "alice" not in "".join(prefixes)
    assert key_prefix("grpc://a", "chat", [], token_of(sub="alice", iss="i", exp=2)) == prefixes[5]
    for key in ("torchserve-key", "a.b.c", token_of(iss="i"), "e30.WzFd.x"):
        assert key_prefix("grpc://a", "chat", [], key) == prefixes[0]
