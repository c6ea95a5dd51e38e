"""The rules of session ids."""

from __future__ import annotations

import math
import re
import secrets

from ts_stateful.protocol.errors import InvalidRequest, SessionIdMismatch

__all__ = [
    "MAX_ID_LENGTH",
    "NEW_SESSION",
    "check_session_id",
    "check_strength",
    "new_session_id",
    "resolve_session_id",
]

NEW_SESSION = "NEW_SESSION"
MAX_ID_LENGTH = 226  # SageMaker's 256 characters less "; Expires=YYYY-MM-DDTHH:MM:SSZ"
# Ids become names of files and keys of stores, where `.` and `..` have another meaning.
_ID_PATTERN = re.compile(rf"(?!\.\Z|.*\.\.)[A-Za-z0-9\-_.]{{1,{MAX_ID_LENGTH}}}")

_STRONG_BITS = 128
_MIN_DIFFERENT = 6  # fewer are too unlikely in 32 random hex digits to be random
_ALPHABETS = tuple(
    (re.compile(rf"[{characters}]*"), size)
    for characters, size in (
        ("0-9", 10),
        ("0-9a-f", 16),
        ("0-9A-F", 16),
        ("0-9a-z", 36),
        ("0-9A-Z", 36),
        ("0-9A-Za-z", 62),
    )
)


def new_session_id() -> str:
    """Make an id of 128 random bits that matches SageMaker's pattern."""
    return secrets.token_hex(16)


def check_session_id(session_id: str, field: str = "session_id") -> str:
    """Return the id.

    Raises:
        InvalidRequest: it is not 1 to 226 characters of `A-Z a-z 0-9 - _ .`, or is `.`, or contains `..`.
    """
    if not _ID_PATTERN.fullmatch(session_id):
        raise InvalidRequest(
            f"a session id is 1 to {MAX_ID_LENGTH} characters of A-Z a-z 0-9 - _ . but not `.`, and contains no `..`",
            field=field,
        )
    return session_id


def check_strength(session_id: str, field: str = "session_id") -> None:
    """Check that an id looks like 128 random bits, by its length and the characters that it may have been drawn from.

    An id that passes may still be no random one.

    Raises:
        InvalidRequest: it is too short, or has too few different characters.
    """
    letters = re.sub(r"[-_.]", "", session_id)
    alphabet = next(size for pattern, size in _ALPHABETS if pattern.fullmatch(letters))
    bits = len(letters) * math.log2(alphabet)
    if bits < _STRONG_BITS or len(set(letters)) < _MIN_DIFFERENT:
        raise InvalidRequest(
            f"this server takes new ids of {_STRONG_BITS} random bits only (`handler.clientIds`): leave the id out,"
            " or send 32 random hex digits",
            field=field,
        )


def resolve_session_id(
    header: str | None, body: str | None, field: str = "session_id"
) -> str | None:
    """Return the session id of a request, or None for a new session (absent, empty or `NEW_SESSION`).

    `field` is the field of the body that held `body`. The id of the header is one that was checked.

    Raises:
        InvalidRequest: the id of the body has a wrong form.
        SessionIdMismatch: header and body name different sessions.
    """
    ids = [value for value in (header, body) if value and value != NEW_SESSION]
    if body in ids:
        check_session_id(body, field)
    if len(set(ids)) > 1:
        raise SessionIdMismatch(
            f"the session header and `{field}` in the body name different sessions", field=field
        )
    return ids[0] if ids else None
