"""The KV states that a fork can use, copied from its source."""

from __future__ import annotations

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Status
from ts_stateful.language.text.dialogue import common_prefix
from ts_stateful.sessions.session import Residency, Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["lend_kv"]

_COMPUTED = (
    Status.RUNNING,
    Status.COMMITTING,
)  # the states are those of the turn's ids, not of the log


def lend_kv(source: Session[Context], fork: Context, table: SessionTable[Context]) -> None:
    """Copy the states of the tokens that both have, if they fit; the fork's next prompt reads or computes the others."""
    kv = source.state.kv
    turn = next((work for work in source.work if work.status in _COMPUTED and work.ids), None)
    length = min(kv.length, common_prefix(turn.ids if turn else source.state.log, fork.log))
    if turn and turn.past is not None:  # the same ids may stand for other images
        length = min(length, turn.keep)
    on_device = source.state.residency is Residency.DEVICE
    if on_device and table.make_room(kv.most_bytes(length), spared=source):
        source.state.lend_kv(fork, length)
