"""Digests of the beginnings of conversations, of their messages and of their ids. Those of other tenants or adapters differ."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.kv.prefix import MIN_TOKENS
from ts_stateful.sessions.session import Session

__all__ = ["digests_of", "ends_of", "starts_of"]


def ends_of(session: Session[Context]) -> list[bytes]:
    """Return digests of a session's messages up to each reply."""
    said = [message for turn in session.state.turns for message in turn.delta.messages]
    keys = digests_of(session, said)
    return [key for message, key in zip(said, keys, strict=True) if message.role == "assistant"]


def digests_of(session: Session[Context], messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield a digest of the messages up to each one."""
    digest = _owned(session, "messages")
    for message in messages:
        digest.update(repr(message.identity).encode())
        yield digest.digest()


def starts_of(session: Session[Context], ids: Sequence[int]) -> list[bytes]:
    """Return digests of the first 16 ids, and of twice as many each time: few, and the last one is of more than half."""
    digest, found = _owned(session, "ids"), list[bytes]()
    start, stop = 0, MIN_TOKENS
    while stop <= len(ids):
        digest.update(array("q", ids[start:stop]).tobytes())
        found.append(digest.digest())
        start, stop = stop, 2 * stop
    return found


def _owned(session: Session[Context], kind: str) -> hashlib._Hash:
    return hashlib.sha256(repr((session.tenant, session.state.adapter, kind)).encode())
