"""Requests that are wrong, and the error that each has to get.

Owns the list. None of them may change anything.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tests.soak.talk import picture
from tests.support.hostile import DEEP, JSON, bomb

__all__ = ["BAD_REQUESTS", "BadRequest"]


class BadRequest(NamedTuple):
    """`options` are those of `Speaker.post`; the request names the session of the conversation."""

    name: str
    code: str
    options: dict[str, Any]


def _body(content: bytes) -> dict[str, Any]:
    return {"content": content, "headers": JSON}


def _asked(**fields: Any) -> dict[str, Any]:
    return {"document": {"prompt": "What color is it?", **fields}}


def _file(content: bytes) -> dict[str, Any]:
    form = {"data": (None, '{"prompt": "?"}', "application/json"), "file": ("x", content)}
    return {"files": form}


BAD_REQUESTS: Final[Sequence[BadRequest]] = (
    BadRequest("no JSON", "invalid_request", _body(b"hello")),
    BadRequest("an empty body", "invalid_request", _body(b"")),
    BadRequest("deep JSON", "invalid_request", _body(DEEP)),
    BadRequest("no UTF-8", "invalid_request", _body(b'{"prompt": "\xff"}')),
    BadRequest("NaN", "invalid_request", _body(b'{"prompt": "x", "temperature": NaN}')),
    BadRequest("an unknown type", "invalid_request", {"document": {"type": "dance"}}),
    BadRequest("an unknown field", "invalid_request", _asked(max_tokens=3)),
    BadRequest("too few tokens", "invalid_request", _asked(max_new_tokens=0)),
    BadRequest("another session", "session_id_mismatch", _asked(session_id="somebody-elses")),
    BadRequest("an open id", "session_exists", {"document": {"type": "open"}}),
    BadRequest("a turn that skips", "turn_gap", _asked(turn=1000)),
    BadRequest(
        "a turn to go back to", "turn_gap", {"document": {"type": "rewind", "to_turn": 1000}}
    ),
    BadRequest("a turn to fork at", "turn_gap", {"document": {"type": "fork", "at_turn": 1000}}),
    BadRequest("a long prompt", "context_too_long", {"document": {"prompt": "circle " * 5000}}),
    BadRequest("no image", "media_invalid", _file(b"this is text")),
    BadRequest("half an image", "media_invalid", _file(picture(0)[:200])),
    BadRequest("a bomb", "media_too_large", _file(bomb())),
    BadRequest("a private host", "media_forbidden", _asked(images=[{"url": "https://10.0.0.1/"}])),
    BadRequest("a local file", "media_forbidden", _asked(images=[{"url": "file:///etc/passwd"}])),
    BadRequest(
        "many images",
        "invalid_request",
        _asked(images=[{"base64": base64.b64encode(picture(0)).decode()}] * 9),
    ),
    BadRequest("no such upload", "invalid_request", _asked(images=[{"upload": "0" * 64}])),
)
