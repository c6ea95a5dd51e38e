"""KV states of system prompts, which sessions share.

The system prompt of a session is what it was opened with or, if a conversation opened it, the first message of that, or the
instructions of a response.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Delta, Message
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.kv.prefix import Prefix, prefix_key, prefix_length
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.dialogue import Dialogue, common_prefix
from ts_stateful.protocol.chat import Chat, Respond
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Open
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable

__all__ = ["PrefixSharing"]


class PrefixSharing:
    """Lends and keeps the system prompts of one engine, which are in `shared`."""

    def __init__(
        self,
        model: Model,
        shared: SharedCache[MediaInput | Prefix],
        table: SessionTable[Context],
    ) -> None:
        self._table = table
        self._text = model.text
        self._media_tokens = model.media_tokens
        self._shared = shared

    def lend(self, sequence: Sequence) -> int:
        """Give a session with fewer KV states those of its system prompt, if there are any; return the number of their ids."""
        context = sequence.context
        opening, kept = self._opening(sequence)
        length = prefix_length(opening, self._media_tokens)
        if not context.kv.length < length <= kept:
            return 0
        key = _key(sequence, length)
        if context.prefix is None or context.prefix.key != key:
            made = self._shared.get(key, lambda: Prefix(key, length))
            assert isinstance(made, Prefix)
            context.prefix = made
        context.kv = context.prefix.lend() or context.kv
        return context.kv.length

    def learn(self, sequence: Sequence) -> None:
        """Keep the KV states of the system prompt with which a turn opened its session."""
        prefix = sequence.context.prefix
        if prefix is None or not (self._system(sequence) or isinstance(sequence.command, Open)):
            return
        if prefix.key == _key(sequence, prefix.length):  # a fork with other tools begins otherwise
            prefix.learn(sequence.context.kv, self._table.make_room)

    def _opening(self, sequence: Sequence) -> tuple[Items[int], int]:
        """Return the ids of the system prompt and of what always follows it, and the number of them that begin the turn."""
        if isinstance(sequence.command, Open):
            return sequence.ids, len(sequence.ids)
        command, system = sequence.command, self._system(sequence)
        if not system:
            kept = sequence.extension.keep if sequence.extension else 0
            return sequence.context.opening.ids, kept
        try:
            tools = command.tools if isinstance(command, Chat) else ()
            ids = self._text.opening(Dialogue(Delta(messages=system)), [], tools)
        except InvalidRequest:  # a template that takes it only before what follows
            return (), 0
        return ids, common_prefix(ids, sequence.ids)

    def _system(self, sequence: Sequence) -> tuple[Message, ...]:
        """Return the system prompt with which a conversation opens the session, if it does."""
        command = sequence.command
        if not (isinstance(command, Chat) and sequence.creates_session):
            return ()
        if isinstance(command, Respond) and command.instructions:
            return self._text.begin(command.instructions, 0).messages
        first = sequence.messages[:1]
        return first if first and first[0].role == "system" else ()


def _key(sequence: Sequence, length: int) -> str:
    """Return the name of the first `length` ids of a turn, as a prefix."""
    tenant, adapter = sequence.session.tenant, sequence.context.adapter
    return prefix_key(sequence.ids[:length], (tenant, adapter) if adapter else tenant)
