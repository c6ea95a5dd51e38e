"""Log entries of sessions, and sessions from their log: ids, texts and embeddings as they were."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal

import torch
from msgspec import structs

from ts_stateful.clock import Clock
from ts_stateful.config.schema import Config
from ts_stateful.language.conversation.context import Context, Past
from ts_stateful.language.conversation.history import Delta, Turn
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import (
    DiscardedEntry,
    GroupEntry,
    ImageRef,
    LogEntry,
    OpenedEntry,
    Part,
    RewoundEntry,
    TurnEntry,
    check_fingerprint,
    history,
    session_logs,
    time_of,
    without_text,
)
from ts_stateful.language.persistence.image_records import (
    image_tensors,
    load_image,
    save_image,
)
from ts_stateful.protocol.errors import SessionExpired, SessionNotFound
from ts_stateful.session_log.journal import GRACE_S, LogPosition, Write, Written
from ts_stateful.session_log.log import Log
from ts_stateful.session_log.ownership import ClosedEntry
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.store.base import Store

__all__ = ["SessionRecords"]

_Recorded = tuple[Part, list[MediaInput]]


class SessionRecords:
    """The sessions of one model in a store."""

    def __init__(
        self,
        model: Model,
        store: Store,
        shared: SharedCache[MediaInput | Prefix],
        config: Config,
        clock: Clock,
    ) -> None:
        self.clock = clock
        self.logs = session_logs(store)
        self._model = model
        self._store = store
        self._shared = shared
        self._content = config.handler.store.content
        self._idle_s = config.frontend.idle_s
        self._writer = uuid.uuid4().hex

    def keeps(self, session: Session[Context]) -> bool:
        """Return True if the entries of the session are enough to restore it."""
        return self._content == "all" or (self._content == "text" and not session.state.images)

    def opening(self, session: Session[Context], images: Iterable[MediaInput]) -> Write:
        """Record that the session is open, with these images."""
        return self._write(session, [(self._opened(session), list(images))])

    def turn(
        self,
        session: Session[Context],
        turn: Turn,
        images: Iterable[MediaInput],
        *,
        creates_session: bool = False,
        past: Past | None = None,
    ) -> Write:
        """Record a committed turn with its new images; the session first goes back to `past`."""
        parts: list[_Recorded] = [(self._opened(session), [])] if creates_session else []
        if past is not None:
            blank = past.opening is not session.state.opening
            parts.append((self._rewound(turn.number - 1, blank=blank), []))
        return self._write(session, [*parts, (self._turn(turn), list(images))])

    def rewound(self, session: Session[Context], to_turn: int) -> Write:
        """Record that the session goes back."""
        return self._write(session, [(self._rewound(to_turn), [])])

    def discarded(self, session: Session[Context], turn: int, to_turn: int) -> Write:
        """Record that a turn lost its note, and that the session goes back."""
        entry = DiscardedEntry(turn, self.clock.unix())
        parts: list[_Recorded] = [(entry, [])]
        if to_turn < len(session.state.turns):
            parts.append((self._rewound(to_turn), []))
        return self._write(session, parts)

    def whole(self, session: Session[Context]) -> Write:
        """Record a session that was made from another one."""
        images = iter(session.state.images)
        first = list(islice(images, session.state.opening.num_images))
        parts: list[_Recorded] = [(self._opened(session), first)]
        for turn in session.state.turns:
            parts.append((self._turn(turn), list(islice(images, turn.delta.num_images))))
        return self._write(session, parts)

    def closed(self, reason: Literal["closed", "expired"], origin: str = "") -> ClosedEntry:
        """Record that a session ended, which the request `origin` opened."""
        return ClosedEntry(self.clock.unix(), reason, writer=self._writer, opened_by=origin)

    def load(self, session_id: str, *, in_use: bool = False) -> Session[Context]:
        """Return the session after its last committed turn; `in_use`: it was not idle since. For a thread of the store.

        Raises:
            SessionError: it ended, belongs to another model, or is not written completely.
            StoreError: see `SessionLog.read`.
        """
        ownership = self.logs.ownership(session_id)

        def make(log: Log[LogEntry]) -> tuple[Session[Context], float]:
            ownership.check_open(log)
            session = self._recovered(session_id, log.entries, in_use=in_use)
            session.state.log_position = LogPosition(log.known)
            return session, self._ttl_s(session)

        return ownership.adopt(make, writer=self._writer)

    def _recovered(
        self, session_id: str, entries: Sequence[LogEntry], *, in_use: bool
    ) -> Session[Context]:
        opened, turns = history(entries)
        media = len(opened.images)
        opening = Delta(ids=opened.token_ids, messages=opened.messages, num_images=media)
        context = Context(opening, self._model.new_kv())
        context.adopted, context.adapter = True, opened.adapter
        now, engine_time = self.clock.monotonic(), self.clock.monotonic_of
        session = Session(
            session_id=session_id,
            state=context,
            opened_at=min(now, engine_time(opened.created_at)),  # other machines have other clocks
            expires_at=engine_time(opened.expires_at),
            idle_s=self._idle_s,
            last_used=now if in_use else min(now, engine_time(time_of(entries[-1]))),
            metadata=opened.metadata,
            origin=opened.origin,
        )
        if now >= session.deadline:
            raise SessionExpired("the session has expired")
        self._check_usable(opened, turns)
        context.images += self._images(session_id, opened.images)
        for entry in turns:
            context.commit(_turn_of(entry))
            context.images += self._images(session_id, entry.images)
        return session

    def _check_usable(self, opened: OpenedEntry, turns: Sequence[TurnEntry]) -> None:
        """Raise `SessionNotFound` if only another engine can go on with the session."""
        check_fingerprint(opened, self._model.fingerprint_with(opened.adapter))
        if not (opened.has_text and all(turn.has_text for turn in turns)):
            raise SessionNotFound(
                "the texts of the session are not in the store, only in the engine that held it: open it again",
                field="session_id",
            )

    def _rewound(self, to_turn: int, *, blank: bool = False) -> RewoundEntry:
        return RewoundEntry(to_turn, self.clock.unix(), blank)

    def _opened(self, session: Session[Context]) -> OpenedEntry:
        opening = session.state.opening
        return OpenedEntry(
            fingerprint=self._model.fingerprint_with(session.state.adapter),
            created_at=self.clock.unix_of(session.opened_at),
            expires_at=self.clock.unix_of(session.expires_at),
            metadata=dict(session.metadata),
            token_ids=opening.ids,
            messages=opening.messages,
            origin=session.origin,
            adapter=session.state.adapter,
        )

    def _turn(self, turn: Turn) -> TurnEntry:
        delta = turn.delta
        num_prompt = turn.usage.prompt_tokens - delta.keep
        return TurnEntry(
            number=turn.number,
            reply=turn.text,
            prompt_ids=delta.ids[:num_prompt],
            reply_ids=delta.ids[num_prompt:],
            finish_reason=turn.finish_reason,
            committed_at=self.clock.unix(),
            keep=delta.keep,
            keep_chars=delta.keep_chars,
            rendered=delta.rendered,
            messages=delta.messages,
            usage=turn.usage,
            timing=turn.timing,
            origin=turn.origin,
            logprobs=turn.logprobs,
            parsing=turn.parsing,
            note=turn.note,
            has_reply=delta.has_reply,
            copied=turn.copied,
        )

    def _write(self, session: Session[Context], parts: Sequence[_Recorded]) -> Write:
        if self._content == "none":
            parts = [(without_text(entry), []) for entry, _ in parts]
        # The engine may replace an image's tensors before they are written, but not these references.
        tensors = [[image_tensors(image) for image in images] for _, images in parts]
        ttl_s = self._ttl_s(session)
        creates_session = isinstance(parts[0][0], OpenedEntry)
        make = partial(self._entries, session, parts, tensors, ttl_s)
        return Write(make, ttl_s, creates_session=creates_session)

    def _entries(
        self,
        session: Session[Context],
        parts: Sequence[_Recorded],
        tensors: Sequence[Sequence[Mapping[str, torch.Tensor]]],
        ttl_s: float,
        position: int,
    ) -> Written | None:
        """Write the images, and return the entries as one, with references to them. For a thread of the store."""
        log = self.logs.log(session.session_id)
        writes_images = self._content == "all" and any(tensors)
        # The images of a session that is being removed would go with it.
        if writes_images and position == 0 and self._store.get(log.key(0)) is not None:
            return None
        entries: list[Part] = []
        for (entry, images), made in zip(parts, tensors, strict=True):
            refs = []
            for image, of in zip(images, made, strict=True):
                digest = save_image(log, of, session.origin, ttl_s) if writes_images else None
                refs.append(ImageRef(embeddings=digest, key=image.key, num_tokens=len(image.ids)))
            entries.append(structs.replace(entry, images=tuple(refs)) if refs else entry)
        one = entries[0] if len(entries) == 1 else GroupEntry(tuple(entries))
        return Written(structs.replace(one, writer=self._writer, opened_by=session.origin))

    def _images(self, session_id: str, refs: Sequence[ImageRef]) -> list[MediaInput]:
        log, images = self.logs.log(session_id), []
        for ref in refs:
            image = self._shared.get(
                ref.key or "", partial(load_image, log, ref, self._model.device)
            )
            assert isinstance(image, MediaInput)
            images.append(image)
        return images

    def _ttl_s(self, session: Session[Context]) -> float:
        return max(0.0, session.expires_at - self.clock.monotonic()) + GRACE_S


def _turn_of(entry: TurnEntry) -> Turn:
    return Turn(
        number=entry.number,
        text=entry.reply,
        finish_reason=entry.finish_reason,
        usage=entry.usage,
        timing=entry.timing,
        delta=Delta(
            keep=entry.keep,
            ids=(*entry.prompt_ids, *entry.reply_ids),
            keep_chars=entry.keep_chars,
            rendered=entry.rendered,
            messages=entry.messages,
            num_images=len(entry.images),
            has_reply=entry.has_reply,
        ),
        origin=entry.origin,
        logprobs=entry.logprobs,
        parsing=entry.parsing,
        note=entry.note,
        copied=entry.copied,
    )
