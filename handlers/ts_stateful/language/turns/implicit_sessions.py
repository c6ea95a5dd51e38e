"""Conversations of clients that name no session: kept after each answer, for the request that continues them.

Such a request has all messages. They are compared with those of the sessions here: text, and for images, pixels. So ids of
replies stay as they were generated, and no message is encoded or prefilled again. Of a text without messages, ids are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import chain

from ts_stateful.clock import Clock
from ts_stateful.config.limits import ImplicitConfig
from ts_stateful.engine.core import EngineCore
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.conversation.matching import branch, same_states
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.kv.prefix import MIN_TOKENS
from ts_stateful.language.network.load import Model
from ts_stateful.language.turns.digests import digests_of, ends_of, starts_of
from ts_stateful.language.turns.kv_lending import lend_kv
from ts_stateful.protocol.chat import Chat, Respond
from ts_stateful.protocol.requests import Prompt
from ts_stateful.sessions.places import Reserve
from ts_stateful.sessions.session import Residency, Session

__all__ = ["ImplicitSessions"]

_MOST = 1000
_CANDIDATES = 8  # of sessions with the same text, which differ in their images or in what follows
_SHARE = 4  # of the device's bytes, a quarter
_UNBOUNDED = 1_000_000_000  # bytes, where the device has no bound

_Session = Session[Context]


@dataclass(eq=False)
class _Kept:
    """A session, and the digests of its messages up to each reply: the client's own, or one that ends a turn.

    A text without messages has none of these `ends`. `starts` are digests of its first ids. An idle one also has its bytes, and
    the `head`: what the prompt of its last turn had before the messages.
    """

    session: _Session
    ends: list[bytes]
    starts: list[bytes]
    is_idle: bool = False
    num_bytes: int = 0
    head: object = None


class ImplicitSessions(Reserve):
    """The implicit sessions of one engine.

    An idle one is only here. A request that continues one gives its own session, in the table, the same history; until it ends,
    others can copy from that. A session is continued in place if the request has all of its turns, or all but the last. Else it
    stays, and the request gets a copy of the turns that it has; so it does if its tools or instructions differ.
    """

    def __init__(self, core: EngineCore[Context], model: Model) -> None:
        handler = core.config.handler
        self.num_continued = 0
        self._settings: ImplicitConfig = handler.implicit_sessions
        self._is_on = handler.stateful_sessions and handler.implicit_sessions.idle_sec > 0
        device_bytes = core.table.limits.device_bytes
        share = _UNBOUNDED if device_bytes is None else device_bytes // _SHARE
        self._budget = self._settings.max_bytes or share
        self._table, self._shared = core.table, core.shared
        self._clock: Clock = core.clock
        self._model = model
        self._idle: dict[str, _Kept] = {}  # by session id, the least recently used first
        self._in_use: dict[str, _Kept] = {}  # by session id; they are in the table, or have ended
        self._by_digest: dict[bytes, dict[_Kept, None]] = {}  # the latest last

    @property
    def num_bytes(self) -> int:
        """Bytes of the idle ones' KV states."""
        return sum(kept.num_bytes for kept in self._idle.values())

    def __len__(self) -> int:
        """Return the number of idle ones."""
        return len(self._idle)

    def images_of(self, session: _Session, chat: Chat) -> Mapping[str, MediaInput]:
        """Return the images by URL that are known to the conversation which a request continues; they are not fetched again."""
        if not any(image.url for image in chat.media):
            return {}
        sent = list(map(self._model.text.chat_message, chat.messages))
        found = next(self._with_text(session, sent), None)
        return found[-1].session.state.by_url if found else {}

    def resume(self, sequence: Sequence, sent: Items[Message]) -> None:
        """Give the new session of a request the history that it continues, if that is here."""
        session = sequence.session
        found = self._find(session, sent, sequence.images)
        if found is None:
            return
        kept, num_turns = found
        source, turns = kept.session, kept.session.state.turns[:num_turns]
        is_same = kept.is_idle and kept.head == _head(sequence)
        if is_same and num_turns >= len(source.state.turns) - 1:
            self._remove(source)
            session.state = source.state
        else:
            fork = source.state.fork(turns, self._model.new_kv())
            fork.by_url = source.state.by_url
            lend_kv(source, fork, self._table)
            session.state = fork
        self._table.tally.changed(session)
        self._in_use[session.session_id] = self._made(session, ends_of(session))
        self.num_continued += 1

    def take(self, sequence: Sequence) -> None:
        """Give a text the session of one whose prompt, and maybe reply, it continues; this changes when it commits."""
        kept, length = self._most_alike(sequence, 0)
        if kept is None or kept.ends or not kept.is_idle:
            return
        state = kept.session.state
        if length >= state.turns[-1].usage.prompt_tokens - 1:
            self._remove(kept.session)
            sequence.session.state, sequence.past = state, state.blank()
            self._table.tally.changed(sequence.session)
            self.num_continued += 1

    def lend(self, sequence: Sequence) -> int:
        """Give a session that a request opens the KV states of more of its first ids; return their number.

        Clients of the Responses API may send all items, and let each response open a session. Agents begin with the same tools,
        a system prompt may have the time at its end, and a client may have shortened a reply. So the session with most of the
        same ids lends.
        """
        if not (isinstance(sequence.command, Prompt) and sequence.creates_session):
            return 0
        context, own = sequence.context, sequence.context.kv
        valid = self.valid(sequence)
        if own.length and valid == len(context.log):  # as always but for other tools
            return 0
        valid = min(valid, own.length, sequence.num_prompt - 1)
        kept, length = self._most_alike(sequence, valid)
        if kept is not None:
            context.cut(valid)
            kept.session.state.lend_kv(context, length)
        return 0 if context.kv is own else context.kv.length

    def _most_alike(self, sequence: Sequence, most: int) -> tuple[_Kept | None, int]:
        """Return the session that can lend most of the first ids, and their number, if these are more than `most`."""
        best, last = None, sequence.num_prompt - 1
        for kept in self._alike(sequence):
            state = kept.session.state
            if state.num_lent(last) <= most or state.log[most] != sequence.ids[most]:
                continue  # comparing all ids takes longer
            shown, tokens = sequence.all_images, self._model.media_tokens
            length = same_states(state.log, state.images, sequence.ids, shown, tokens)
            length = state.num_lent(min(length, last))
            if length >= max(most + 1, MIN_TOKENS):
                best, most = kept, length
        return best, most

    def valid(self, sequence: Sequence) -> int:
        """Return the number of first ids of a turn for which the states of its session are valid."""
        context, images, tokens = sequence.context, sequence.all_images, self._model.media_tokens
        return same_states(context.log, context.images, sequence.ids, images, tokens)

    def noted(self, session: _Session) -> None:
        """Let others copy from an open session after a turn of it; it stays in the table."""
        self._remove(session)
        if self._is_on and (ends := ends_of(session)):
            self._in_use[session.session_id] = self._made(session, ends)

    def ended(self, sequence: Sequence) -> None:
        """Take the session of a request that has ended out of the table, and keep it for the next request."""
        session = sequence.session
        self._table.forget(session)
        self._remove(session)
        num_bytes = session.state.device_bytes
        ends = ends_of(session) if isinstance(sequence.command, Chat) else []
        is_found = bool(ends) or len(session.state.log) >= MIN_TOKENS
        keeps = self._is_on and is_found and bool(session.state.turns)
        if not (keeps and 0 < num_bytes <= self._budget):
            self._shared.keep(session.state.shared)
            return
        session.last_used = self._clock.monotonic()
        kept = self._idle[session.session_id] = self._made(session, ends)
        kept.is_idle, kept.num_bytes, kept.head = True, num_bytes, _head(sequence)
        self.evict(max(0, self.num_bytes - self._budget))
        if len(self._idle) > _MOST:
            self._drop(self._oldest)

    def expire(self) -> None:
        """Drop those that no request has continued for too long."""
        if len(self._in_use) > len(self._table):  # some have ended
            for session_id in self._in_use.keys() - {one.session_id for one in self._table}:
                self._remove(self._in_use[session_id].session)
        latest = self._clock.monotonic() - self._settings.idle_sec
        while self._idle and self._oldest.session.last_used <= latest:
            self._drop(self._oldest)

    def evict(self, num_bytes: int | None = None) -> int:
        """See `Reserve`."""
        freed = 0
        while self._idle and (num_bytes is None or freed < num_bytes):
            freed += self._oldest.num_bytes
            self._drop(self._oldest)
        return freed

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
        for session_id, kept in self._idle.items():
            state = kept.session.state
            assert session_id not in self._table
            assert session_id not in self._in_use
            assert kept.num_bytes == state.device_bytes
            assert state.kv.length <= len(state.log)
            state.check_integrity()
        every = [*self._idle.items(), *self._in_use.items()]
        assert all(kept.session.session_id == session_id for session_id, kept in every)
        assert all(kept.is_idle == (session_id in self._idle) for session_id, kept in every)
        indexed = {id(kept) for found in self._by_digest.values() for kept in found}
        assert indexed == {id(kept) for _, kept in every}

    def _find(
        self, session: _Session, sent: Items[Message], images: Items[MediaInput]
    ) -> tuple[_Kept, int] | None:
        """Return the session that has most of the turns that were sent, and their number."""
        for found in self._with_text(session, sent):
            several = [
                (branch(kept.session.state, sent, images).num_turns or 0, kept)
                for kept in found[-_CANDIDATES:]
            ]
            num_turns, best = max(several, key=_fit)
            if num_turns:
                return best, num_turns
        return None

    def _with_text(self, session: _Session, sent: Items[Message]) -> Iterator[list[_Kept]]:
        """Yield those that begin with the same texts as a conversation, the longest beginning first."""
        keys = list(digests_of(session, sent[:-1]))
        for said, key in zip(reversed(sent[:-1]), reversed(keys), strict=True):
            found = list(filter(self._is_here, self._by_digest.get(key, ())))
            if said.role == "assistant" and found:
                yield found

    def _alike(self, sequence: Sequence) -> Iterable[_Kept]:
        """Return sessions that can lend, those with the longest beginning of the same ids first."""
        keys = reversed(starts_of(sequence.session, sequence.ids))
        found = chain.from_iterable(reversed(self._by_digest.get(key, {})) for key in keys)
        return (kept for kept in dict.fromkeys(found) if self._is_here(kept) and _lends(kept))

    def _is_here(self, kept: _Kept) -> bool:
        """Return False for a session that was in the table, and has ended."""
        return kept.is_idle or kept.session in self._table.tally

    def _made(self, session: _Session, ends: list[bytes]) -> _Kept:
        """Return what is kept of a session, which others find from now on."""
        kept = _Kept(session, ends, starts_of(session, session.state.log))
        for key in (*kept.ends, *kept.starts):
            self._by_digest.setdefault(key, {})[kept] = None
        return kept

    def _remove(self, session: _Session) -> None:
        """Forget what is kept of a session, if anything is."""
        name = session.session_id
        kept = self._idle.pop(name, None) or self._in_use.pop(name, None)
        if kept is None:
            return
        for key in (*kept.ends, *kept.starts):
            found = self._by_digest[key]
            del found[kept]
            if not found:
                del self._by_digest[key]

    @property
    def _oldest(self) -> _Kept:
        return next(iter(self._idle.values()))

    def _drop(self, kept: _Kept) -> None:
        self._shared.keep(kept.session.state.shared)
        self._remove(kept.session)


def _fit(found: tuple[int, _Kept]) -> tuple[int, bool, int]:
    """Return a key that is greater for more common turns, then for one to be continued in place, then for fewer others."""
    num_turns, kept = found
    return num_turns, kept.is_idle, -len(kept.session.state.turns)


def _head(sequence: Sequence) -> object:
    command = sequence.command
    instructions = command.instructions if isinstance(command, Respond) else ""
    return (command.tools, instructions) if isinstance(command, Chat) else None


def _lends(kept: _Kept) -> bool:
    return kept.session.state.residency is Residency.DEVICE and not kept.session.busy
