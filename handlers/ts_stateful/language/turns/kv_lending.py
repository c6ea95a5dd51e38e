"""The KV states that a fork can use, copied from its source."""

from __future__ import annotations

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Status
from ts_stateful.language.text.dialogue import common_prefix
from ts_stateful.sessions.session import Residency, Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["lend_kv"]


def lend_kv(source: Session[Context], fork: Context, table: SessionTable[Context]) -> None:
    """Copy the states of the tokens that both have, if they fit; the fork's next prompt reads or computes the others."""
    kv = source.state.kv
    running = [work for work in source.work if work.status is Status.RUNNING]
    computed = running[0].ids if running else source.state.log
    length = min(kv.length, common_prefix(computed, fork.log))
    if running and running[0].past is not None:  # the same ids may stand for other images
        length = min(length, running[0].keep)
    on_device = source.state.residency is Residency.DEVICE
    if on_device and table.make_room(kv.most_bytes(length), spared=source):
        source.state.lend_kv(fork, length)
