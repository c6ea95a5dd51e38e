"""The KV states of the same first ids, copied from another session."""

from __future__ import annotations

from collections.abc import Collection

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.matching import same_states
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.kv.prefix import MIN_TOKENS
from ts_stateful.language.kv.spans import beginning_of
from ts_stateful.language.scheduler import Scheduler
from ts_stateful.language.text.dialogue import common_prefix
from ts_stateful.sessions.session import Residency, Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["lend_common", "lend_kv", "share_beginning", "unshare"]

# The states are those of the turn's ids, not of the log.
_COMPUTED = TurnStatus.RUNNING, TurnStatus.COMMITTING


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


def share_beginning(
    sequence: Sequence, running: Scheduler[Sequence], media_tokens: Collection[int]
) -> None:
    """Copy to a turn that opens a session what a running one has computed of the same first ids.

    If another one still computes many more of them, both note in `alike` how many they have in common.
    """
    found = _alike(sequence, running, media_tokens) if sequence.creates_session else {}
    if found:
        most = max(found, key=lambda other: other.context.num_lent(found[other]))
        _lend(most, sequence, found[most])
    start = sequence.context.kv.length
    for other, length in found.items():
        is_known = other.context.kv.length >= length
        if not is_known and length - start >= running.least:
            sequence.alike[other] = other.alike[sequence] = length


def lend_common(lender: Sequence, *, ends: bool = False) -> None:
    """Copy states to the turns that have the same first ids, when all of these are computed, or if the lender `ends`."""
    for taker, length in [*lender.alike.items()]:
        if ends or lender.context.kv.length >= length:
            del lender.alike[taker], taker.alike[lender]
            _lend(lender, taker, length)


def unshare(turns: Collection[Sequence]) -> None:
    """Let none of these turns lend to another one of them."""
    for one in turns:
        one.alike = {other: at for other, at in one.alike.items() if other not in turns}


def _alike(
    sequence: Sequence, running: Scheduler[Sequence], media_tokens: Collection[int]
) -> dict[Sequence, int]:
    """Return the turns, of those that opened their sessions, which have the same states, and for how many ids."""
    context, tenant = sequence.context, sequence.session.tenant
    start, most, found = context.kv.length, sequence.num_prompt - 1, dict[Sequence, int]()
    first = sequence.ids[start : start + MIN_TOKENS]
    for other in running if most >= start + MIN_TOKENS else ():
        held = other.context
        if other.ids[start : start + MIN_TOKENS] != first or not other.creates_session:
            continue  # comparing all ids takes longer
        if (other.session.tenant, held.adapter) != (tenant, context.adapter):
            continue
        if held.kv.images != context.kv.images:
            continue
        shown = other.all_images, sequence.ids, sequence.all_images
        length = min(same_states(other.ids, *shown, media_tokens), most, other.num_prompt - 1)
        length = beginning_of(other.blocks, beginning_of(sequence.blocks, length))
        if length >= start + MIN_TOKENS:
            found[other] = length
    return found


def _lend(lender: Sequence, taker: Sequence, length: int) -> None:
    context, before = taker.context, taker.context.kv.length
    length = lender.context.num_lent(length)
    if length < before + MIN_TOKENS:
        return
    lender.context.lend_kv(context, length)
    taker.cached += context.kv.length - before
    if context.kv.recurrent is not None:
        context.kv.recurrent.keep(context.kv.length)
