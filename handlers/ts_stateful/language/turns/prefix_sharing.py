"""Which sessions get the KV states of their system prompt from others, and which compute them for others.

Owns what of a turn's context is a system prompt: what the session was opened with or, of a conversation that opens one, its
first message. How states are copied is `prefix`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.kv.prefix import Prefix, prefix_key, prefix_length
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.chat_template import Dialogue, common_prefix
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Chat, Open
from ts_stateful.sessions.session import Delta
from ts_stateful.sessions.shared import SharedCache

__all__ = ["PrefixSharing"]


class PrefixSharing:
    """Lends the system prompts of one engine, which are in `shared`; `make_room` is that of its table."""

    def __init__(
        self,
        model: Model,
        shared: SharedCache[ImageInput | Prefix],
        make_room: Callable[[int], bool],
    ) -> None:
        self._make_room = make_room
        self._text = model.text
        self._image_token = model.vision.image_token_id if model.vision else None
        self._shared = shared

    def lend(self, sequence: Sequence) -> int:
        """Gives a session that has no states those of its system prompt, if they are known; returns of how many ids."""
        context = sequence.context
        opening, kept = self._opening(sequence)
        length = prefix_length(opening, self._image_token)
        if context.kv.length or not 0 < length <= kept:
            return 0
        if context.prefix is None:
            key = prefix_key(opening[:length], sequence.session.metadata.get("tenant"))
            made = self._shared.get(key, lambda: Prefix(key, length))
            assert isinstance(made, Prefix)
            context.prefix = made
        context.kv = context.prefix.lend() or context.kv
        return context.kv.length

    def learn(self, sequence: Sequence) -> None:
        """Keeps the states of the system prompt with which a turn has opened its session for others."""
        context = sequence.context
        if context.prefix is not None and (_tells(sequence) or isinstance(sequence.command, Open)):
            context.prefix.learn(context.kv, self._make_room)

    def _opening(self, sequence: Sequence) -> tuple[Items[int], int]:
        """The ids of the system prompt and what follows it whatever is said, and how many of them the turn begins with."""
        if isinstance(sequence.command, Open):
            return sequence.ids, len(sequence.ids)
        if not _tells(sequence):
            kept = sequence.extension.keep if sequence.extension else 0
            return sequence.context.opening.ids, kept
        try:
            ids = self._text.opening(Dialogue(Delta(messages=sequence.messages[:1])), [])
        except InvalidRequest:  # a template that takes it only before what follows
            return (), 0
        return ids, common_prefix(ids, sequence.ids)


def _tells(sequence: Sequence) -> bool:
    """Whether it opens its session by telling a conversation with a system prompt."""
    chats = isinstance(sequence.command, Chat) and sequence.creates_session
    return chats and sequence.messages[0].role == "system"
