"""Session ids of tenants: engines, logs and stores hold a client's id only under its tenant.

An internal id is `<tenant>.<session>`: 32 hex digits for the principal, 64 for the principal and the client's id. Both are
prefixes of SHA-256. No two principals share an internal id, and neither can name one of the other.
"""

from __future__ import annotations

import hashlib
import re

from ts_stateful.protocol.errors import InvalidRequest

__all__ = ["check_principal", "internal_id", "tenant_digits", "tenant_of"]

_MAX_CHARS = 256
_TENANT_DIGITS = 32
_INTERNAL_ID = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{64}")


def check_principal(name: str) -> str:
    """Return the name of a principal.

    Raises:
        InvalidRequest: it is not 1 to 256 printable characters without blanks at its ends.
    """
    if not name.isprintable() or name != name.strip() or not 1 <= len(name) <= _MAX_CHARS:
        raise InvalidRequest(
            f"a principal is 1 to {_MAX_CHARS} printable characters without blanks at its ends"
        )
    return name


def internal_id(principal: str, session_id: str) -> str:
    """Return the id under which everything after the frontend holds a principal's session."""
    tenant = tenant_digits(principal)
    session = hashlib.sha256(f"{tenant}\0{principal}\0{session_id}".encode()).hexdigest()
    return f"{tenant}.{session}"


def tenant_digits(principal: str) -> str:
    """Return the tenant's part of a principal's internal ids."""
    return hashlib.sha256(b"tenant\0" + principal.encode()).hexdigest()[:_TENANT_DIGITS]


def tenant_of(session_id: str) -> str | None:
    """Return the tenant's part of an internal id; None for an id of a client without a principal."""
    match = _INTERNAL_ID.fullmatch(session_id)
    return None if match is None else match[1]
