"""The names of requests: those by which others know them, `x-request-id` and a trace, and random ones."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Correlation", "new_request_id"]

_DIGITS, _AT_ONCE = 32, 64
# A call of the system for each id lets other threads of Python run first, which was a tenth of a front's time for a request.
_made: list[str] = []
os.register_at_fork(after_in_child=_made.clear)  # or both processes would give the same ids

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
# https://www.w3.org/TR/trace-context/#traceparent-header
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Correlation(NamedTuple):
    """The names of one request: `request_id` is the client's, or a new one."""

    request_id: str
    traceparent: str | None = None

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, object]]) -> Correlation:
        """Read headers, whose names are in lower case; a value that is malformed counts as absent."""
        found = {name: str(value) for name, value in pairs if name in _NAMES}
        if not found:
            return cls(new_request_id())
        given, trace = found.get("x-request-id", ""), found.get("traceparent", "")
        return cls(
            given if _REQUEST_ID.fullmatch(given) else new_request_id(),
            trace if _TRACEPARENT.fullmatch(trace) else None,
        )

    @property
    def trace_id(self) -> str | None:
        """The 32 digits of the trace, if there is one."""
        return None if self.traceparent is None else self.traceparent.split("-")[1]

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer."""
        pairs = [(b"x-request-id", self.request_id.encode())]
        if self.traceparent is not None:
            pairs.append((b"traceparent", self.traceparent.encode()))
        return pairs


_NAMES = ("x-request-id", "traceparent")


def new_request_id() -> str:
    """Return 32 random hexadecimal digits that nobody can guess; any thread may call it."""
    try:
        return _made.pop()
    except IndexError:
        digits = secrets.token_hex(_DIGITS * _AT_ONCE // 2)
        _made.extend(digits[at : at + _DIGITS] for at in range(_DIGITS, len(digits), _DIGITS))
        return digits[:_DIGITS]
