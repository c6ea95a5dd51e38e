"""Entries of a log from sessions, and sessions from the entries of a log.

Owns what of a session is written down and how it is made again: ids, texts and embeddings as they were, so nothing has to be
rendered, tokenized or seen a second time. Knows nothing of requests, nor of when something is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple

import msgspec
import torch

from ts_stateful.language.conversation.context import Context, Past
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.image_records import image_tensors, load_image, save_image
from ts_stateful.language.persistence.journal import Write
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.errors import SessionExpired, SessionNotFound
from ts_stateful.protocol.requests import Prompt
from ts_stateful.session_log import ownership as holding
from ts_stateful.session_log import records
from ts_stateful.session_log.log import Known, Log
from ts_stateful.sessions.session import Delta, Message, Session, Turn
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.store.base import Store

__all__ = ["Recovered", "SessionRecords"]

_SAMPLING = ("temperature", "top_p", "top_k", "max_new_tokens", "ignore_eos")

_Part = tuple[records.Entry, list[ImageInput]]


class Recovered(NamedTuple):
    """A session that was made again from the store, and its log there."""

    session: Session[Context]
    known: Known


class SessionRecords:
    """The sessions of one model in a store. `utc` tells Unix time, `clock` the engine's; `writer` names this process.

    `content` says what is written of a session: all that it needs to go on elsewhere, that without its images, or nothing. One
    that nobody has used for `idle_s` seconds has expired.
    """

    def __init__(
        self,
        model: Model,
        store: Store,
        shared: SharedCache[ImageInput | Prefix],
        *,
        writer: str,
        content: Literal["all", "text", "none"],
        idle_s: float,
        clock: Callable[[], float],
        utc: Callable[[], float],
    ) -> None:
        self._model = model
        self._store = store
        self._shared = shared
        self._writer = writer
        self._content = content
        self._idle_s = idle_s
        self._clock = clock
        self._utc = utc

    def keeps(self, session: Session[Context]) -> bool:
        """Whether what is written of the session is enough to make it again."""
        return self._content == "all" or (self._content == "text" and not session.state.images)

    def opening(self, session: Session[Context], images: Iterable[ImageInput]) -> Write:
        """The session is open, with these images."""
        return self._write(session, [(self._opened(session), list(images))])

    def turn(
        self,
        session: Session[Context],
        turn: Turn,
        command: Prompt,
        images: Iterable[ImageInput],
        *,
        creates_session: bool = False,
        past: Past | None = None,
    ) -> Write:
        """A turn is committed, with these new images.

        `creates_session` says that the session was opened with it, `past` what the session goes back to first.
        """
        parts: list[_Part] = [(self._opened(session), [])] if creates_session else []
        if past is not None:
            blank = past.opening is not session.state.opening
            parts.append((self._rewound(turn.number - 1, blank=blank), []))
        return self._write(session, [*parts, (self._turn(turn, command), list(images))])

    def rewound(self, session: Session[Context], to_turn: int) -> Write:
        """The session goes back."""
        return self._write(session, [(self._rewound(to_turn), [])])

    def whole(self, session: Session[Context]) -> Write:
        """Everything that the session is, which was made from another one."""
        images = iter(session.state.images)
        first = list(islice(images, session.state.opening.num_images))
        parts: list[_Part] = [(self._opened(session), first)]
        for turn in session.turns:
            parts.append((self._turn(turn, None), list(islice(images, turn.delta.num_images))))
        return self._write(session, parts)

    def end(self, session_id: str, reason: Literal["closed", "expired"], known: Known) -> None:
        """Removes a session that has ended here, unless it is used elsewhere. On a thread of the store; see `holding`."""
        closed = records.Closed(self._utc(), self._writer, reason)
        holding.end(self._store, session_id, closed, known)

    def has_more(self, session_id: str, known: Known) -> bool:
        """Whether the session has gone on behind what is known of its log, or has ended. On a thread of the store."""
        return holding.has_more(self._store, session_id, known)

    def load(self, session_id: str, *, in_use: bool = False) -> Recovered:
        """The session as its last committed turn left it; one that was `in_use` was not idle since. On a thread of the store.

        Raises:
            SessionError: there is none, by what became of it; it was made by another model; or what it needs was not written.
            StoreError: as the store says.
        """
        make = partial(self._recovered, session_id, in_use)
        return holding.adopt(self._store, session_id, make, writer=self._writer, now=self._utc())

    def _recovered(self, session_id: str, in_use: bool, log: Log) -> Recovered:
        opened, turns, _ = records.history(log.entries)
        context = Context(self._opening(opened), self._model.new_kv())
        context.adopted = True
        session = Session(
            session_id=session_id,
            state=context,
            opened_at=self._engine_time(opened.created_at),
            expires_at=self._engine_time(opened.expires_at),
            idle_s=self._idle_s,
            last_used=self._clock() if in_use else self._engine_time(_time_of(log.entries[-1])),
            metadata=opened.metadata,
            origin=opened.origin,
        )
        if self._clock() >= session.deadline:
            raise SessionExpired("the session has expired")
        self._check_usable(opened, turns)
        context.images += self._images(opened.images)
        for record in turns:
            turn = _turn_of(record)
            context.commit(turn.delta)
            context.images += self._images(record.images)
            session.turns.append(turn)
        return Recovered(session, log.known)

    def _check_usable(self, opened: records.Opened, turns: Sequence[records.Turn]) -> None:
        """Raises `SessionNotFound` where nobody but another engine can go on with the session."""
        try:
            records.check_fingerprint(opened, self._model.fingerprint)
        except records.FingerprintMismatch as error:
            raise SessionNotFound(error.message, field="session_id") from error
        if not (opened.has_text and all(turn.has_text for turn in turns)):
            raise SessionNotFound(
                "only the engine that the session was held at has what was said in it: open it again",
                field="session_id",
            )

    def _rewound(self, to_turn: int, *, blank: bool = False) -> records.Rewound:
        return records.Rewound(to_turn, self._utc(), self._writer, blank)

    def _opened(self, session: Session[Context]) -> records.Opened:
        opening = session.state.opening
        return records.Opened(
            fingerprint=dict(self._model.fingerprint),
            created_at=self._unix(session.opened_at),
            expires_at=self._unix(session.expires_at),
            metadata=dict(session.metadata),
            token_ids=opening.ids,
            messages=_said(opening.messages),
            origin=session.origin,
            writer=self._writer,
        )

    def _turn(self, turn: Turn, command: Prompt | None) -> records.Turn:
        delta = turn.delta
        num_prompt = turn.usage.prompt_tokens - delta.keep
        return records.Turn(
            number=turn.number,
            reply=turn.text,
            prompt_ids=delta.ids[:num_prompt],
            reply_ids=delta.ids[num_prompt:],
            finish_reason=turn.finish_reason,
            committed_at=self._utc(),
            keep=delta.keep,
            keep_chars=delta.keep_chars,
            rendered=delta.rendered,
            seed=command.seed if command else None,
            sampling={name: getattr(command, name) for name in _SAMPLING} if command else {},
            stop=command.stop_strings if command else (),
            messages=_said(delta.messages),
            usage=turn.usage,
            timing=turn.timing,
            origin=turn.origin,
            writer=self._writer,
        )

    def _write(self, session: Session[Context], parts: Sequence[_Part]) -> Write:
        if self._content == "none":
            parts = [(records.without_text(entry), []) for entry, _ in parts]
        # What an image is made of may be exchanged by the engine meanwhile, but not these references.
        tensors = [[image_tensors(image) for image in images] for _, images in parts]
        ttl_s = max(1.0, session.expires_at - self._clock())
        creates_session = isinstance(parts[0][0], records.Opened)
        return Write(
            partial(self._entries, parts, tensors, ttl_s), ttl_s, creates_session=creates_session
        )

    def _entries(
        self,
        parts: Sequence[_Part],
        tensors: Sequence[Sequence[Mapping[str, torch.Tensor]]],
        ttl_s: float,
    ) -> list[records.Entry]:
        """Writes the images, on a thread of the store; the entries refer to them."""
        keeps_images = self._content == "all"
        entries = []
        for (entry, images), made in zip(parts, tensors, strict=True):
            refs = tuple(
                records.ImageRef(
                    embeddings=save_image(self._store, of, ttl_s) if keeps_images else None,
                    key=image.key,
                    num_tokens=len(image.ids),
                )
                for image, of in zip(images, made, strict=True)
            )
            entries.append(msgspec.structs.replace(entry, images=refs) if refs else entry)
        return entries

    def _opening(self, opened: records.Opened) -> Delta:
        return Delta(
            ids=opened.token_ids,
            messages=_messages(opened.messages),
            num_images=len(opened.images),
        )

    def _images(self, refs: Sequence[records.ImageRef]) -> list[ImageInput]:
        images = []
        for ref in refs:
            image = self._shared.get(
                ref.key or "", partial(load_image, self._store, ref, self._model.device)
            )
            assert isinstance(image, ImageInput)
            images.append(image)
        return images

    def _unix(self, at: float) -> float:
        return self._utc() + at - self._clock()

    def _engine_time(self, unix: float) -> float:
        return self._clock() + unix - self._utc()


def _turn_of(record: records.Turn) -> Turn:
    return Turn(
        number=record.number,
        text=record.reply,
        finish_reason=record.finish_reason,
        usage=record.usage,
        timing=record.timing,
        delta=Delta(
            keep=record.keep,
            ids=(*record.prompt_ids, *record.reply_ids),
            keep_chars=record.keep_chars,
            rendered=record.rendered,
            messages=_messages(record.messages),
            num_images=len(record.images),
        ),
        origin=record.origin,
    )


def _said(messages: Sequence[Message]) -> tuple[records.Message, ...]:
    return tuple(records.Message(*message) for message in messages)


def _messages(said: Sequence[records.Message]) -> tuple[Message, ...]:
    return tuple(Message(one.role, one.text, one.num_images, one.parts) for one in said)


def _time_of(entry: records.Entry) -> float:
    if isinstance(entry, records.Opened):
        return entry.created_at
    return entry.committed_at if isinstance(entry, records.Turn) else entry.at
