"""Random ids for requests."""

from __future__ import annotations

import os
import secrets

__all__ = ["new_request_id"]

_DIGITS, _AT_ONCE = 32, 64

# A call of the system for each id lets other threads of Python run first, which was a tenth of a front's time for a request.
_made: list[str] = []
os.register_at_fork(after_in_child=_made.clear)  # or both processes would give the same ids


def new_request_id() -> str:
    """Return 32 random hexadecimal digits that nobody can guess; any thread may call it."""
    try:
        return _made.pop()
    except IndexError:
        digits = secrets.token_hex(_DIGITS * _AT_ONCE // 2)
        _made.extend(digits[at : at + _DIGITS] for at in range(_DIGITS, len(digits), _DIGITS))
        return digits[:_DIGITS]
