"""The life of a turn: from admission to commit or roll-back.

Owns what a turn does to its session. Knows nothing of forward passes; which request wants which turn is `commands`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Executor
from functools import partial

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.matching import same_states
from ts_stateful.language.conversation.turn import Sequence, Status
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.journal import Done
from ts_stateful.language.persistence.persistence import TurnPersistence
from ts_stateful.language.scheduler import Scheduler
from ts_stateful.language.turns.outbox import TurnOutbox, usage_of
from ts_stateful.language.turns.prefix_sharing import PrefixSharing
from ts_stateful.language.turns.preparation import check_window, extend, take_up
from ts_stateful.language.turns.waiters import Waiters
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.language.vision.known_urls import load_unknown, urls_of
from ts_stateful.language.vision.reader import ImageReader
from ts_stateful.media import ImageFile
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import OutOfMemory, SessionMoved, SessionNotFound, StatefulError
from ts_stateful.protocol.requests import Chat, Fork, Image, Prompt, Rewind
from ts_stateful.sessions.session import Session, Turn
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable

__all__ = ["LoadImages", "ReadImage", "Turns"]

ReadImage = Callable[[ImageFile], ImageInput]
LoadImages = Callable[[Items[Image], Items[bytes], ReadImage], list[ImageInput]]


class Turns:
    """The turns of one engine.

    `load_images` fetches files and has them read; it runs on `executor`, and `post` brings its outcome back to the engine's
    thread.
    """

    def __init__(
        self,
        model: Model,
        table: SessionTable[Context],
        scheduler: Scheduler[Sequence],
        waiters: Waiters,
        outbox: TurnOutbox,
        *,
        shared: SharedCache[ImageInput | Prefix],
        load_images: LoadImages,
        executor: Executor,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        persistence: TurnPersistence,
    ) -> None:
        self._model = model
        self._persistence = persistence
        self._table = table
        self._scheduler = scheduler
        self._waiters = waiters
        self._outbox = outbox
        self._shared = shared
        self._prefix_sharing = PrefixSharing(model, shared, table.make_room)
        self._images = ImageReader(model.vision, shared) if model.vision else None
        self._load_images = load_images
        self._executor = executor
        self._post = post
        self._clock = clock

    def admit(self, sequence: Sequence, images: Items[Image], files: Items[bytes]) -> None:
        """Takes a turn into its session; it runs once its images are there and the turns before it are done."""
        sequence.session.work.append(sequence)
        self._table.touch(sequence.session)
        self._persistence.recall(sequence.session, self._recalled)
        if images or files:
            self._executor.submit(self._load, sequence, images, files)
        else:
            sequence.status = Status.WAITING
            self._advance(sequence)

    def fail(self, sequence: Sequence, error: StatefulError) -> None:
        """Rolls the turn back: the session stands where its last committed turn left it."""
        session, context = sequence.session, sequence.context
        if sequence.status in (Status.RUNNING, Status.COMMITTING):
            context.kv.truncate(sequence.keep)
            context.failed = (sequence.number, error)
            self._table.touch(session)
        self._scheduler.remove(sequence)
        self._leave(sequence)
        self._waiters.failed(sequence, error)
        if isinstance(error, SessionMoved):
            self._let_go(session, error)
        elif sequence.creates_session and not session.turns:
            self._let_go(session, SessionNotFound("the session could not be opened"))
        self._persistence.parked()

    def _let_go(self, session: Session[Context], error: StatefulError) -> None:
        for other in list(session.work):
            other.status = Status.DONE
            self._waiters.failed(other, error)
        session.work.clear()
        self._table.forget(session)

    def finish(self, sequence: Sequence, reason: str) -> None:
        """Ends the turn as it stands; it is committed, and its last event goes out, when its record is in the store."""
        self._scheduler.remove(sequence)
        try:
            turn = self._turn(sequence, reason) if isinstance(sequence.command, Prompt) else None
        except Exception as error:  # a tokenizer may raise anything
            self._recorded(sequence, None, defect(error, "ending a turn"))
            return
        if turn is None:
            sequence.context.open(sequence.ids)
        sequence.status = Status.COMMITTING
        self._persistence.committed(sequence, turn, partial(self._recorded, sequence, turn))

    def write_down(
        self,
        session: Session[Context],
        command: Fork | Rewind,
        write: Callable[[Done], None],
        done: Done,
    ) -> None:
        """Has something written that is no turn; what comes next in the session waits until it is `done`."""
        sequence = Sequence(session, command, self._clock(), status=Status.COMMITTING)
        session.work.append(sequence)
        write(partial(self._written, sequence, done))

    def _written(self, sequence: Sequence, done: Done, error: StatefulError | None) -> None:
        done(error)
        self._leave(sequence)
        if isinstance(error, SessionMoved):
            self._let_go(sequence.session, error)
        elif error is not None and isinstance(sequence.command, Fork):
            self._let_go(sequence.session, SessionNotFound("the session could not be opened"))
        for follow in sequence.afterwards:
            follow()

    def _recorded(self, sequence: Sequence, turn: Turn | None, error: StatefulError | None) -> None:
        if error is None:
            self._commit(sequence, turn)
        else:
            self.fail(sequence, error)
        for follow in sequence.afterwards:
            follow()

    def _commit(self, sequence: Sequence, turn: Turn | None) -> None:
        session, context = sequence.session, sequence.context
        if sequence.past is not None:
            context.go_back(sequence.past)
            session.turns = session.turns[: sequence.number - 1]
        if turn is not None:
            context.commit(turn.delta)
            session.turns.append(turn)
        self._prefix_sharing.learn(sequence)
        context.kv.truncate(len(context.log))
        context.images += sequence.images
        context.remember(sequence.urls)
        sequence.images = []
        self._table.touch(session)
        self._leave(sequence)
        self._waiters.finished(sequence, turn)
        if sequence.ephemeral:
            self._shared.keep(context.shared)
            self._table.forget(sequence.session)
        self._persistence.parked()

    def _turn(self, sequence: Sequence, reason: str) -> Turn:
        extension, reply = sequence.extension, sequence.reply
        assert extension is not None
        assert reply is not None
        text = reply.finish()
        reply_ids = sequence.ids[sequence.num_prompt :][: reply.num_kept]
        return Turn(
            number=sequence.number,
            text=text,
            finish_reason=reason,
            usage=usage_of(sequence),
            timing=self._outbox.timing_of(sequence),
            delta=self._model.text.committed(
                sequence.base.dialogue, sequence.messages, extension, text, reply_ids
            ),
            origin=sequence.origin,
        )

    def _load(self, sequence: Sequence, images: Items[Image], files: Items[bytes]) -> None:
        """Runs on a media thread."""
        assert self._images is not None
        read = partial(self._images.read, tenant=sequence.session.metadata.get("tenant"))
        made: list[ImageInput] | StatefulError
        known = sequence.context.by_url if isinstance(sequence.command, Chat) else {}
        try:
            made = load_unknown(images, known, lambda some: self._load_images(some, files, read))
        except StatefulError as error:
            made = error.with_traceback(None)  # its frames would hold the session
        except Exception as error:  # the boundary of a media thread
            made = defect(error, "loading images")
        self._post(lambda: self._loaded(sequence, made))

    def _loaded(self, sequence: Sequence, made: list[ImageInput] | StatefulError) -> None:
        if sequence.status is Status.DONE:
            return
        if isinstance(made, StatefulError):
            self.fail(sequence, made)
            return
        sequence.images = made
        if isinstance(sequence.command, Chat):
            sequence.urls = urls_of(sequence.command.images, made)
        sequence.status = Status.WAITING
        self._advance(sequence)

    def _recalled(self, session: Session[Context]) -> None:
        """Its KV states are there, or will not come."""
        if session.work:
            self._advance(session.work[0])

    def _advance(self, sequence: Sequence) -> None:
        """Starts the turn if it is the next of its session and has what it needs."""
        if sequence.status is not Status.WAITING or sequence.session.work[0] is not sequence:
            return
        if sequence.context.incoming:
            return
        sequence.started_at = self._clock()
        try:
            self._start(sequence)
        except StatefulError as error:
            self.fail(sequence, error)
        except Exception as error:  # a template or a tokenizer may raise anything
            self.fail(sequence, defect(error, "starting a turn"))

    def _start(self, sequence: Sequence) -> None:
        context = sequence.context
        extension = extend(self._model, sequence)
        sequence.extension = extension
        sequence.ids = sequence.base.log[: extension.keep] + extension.ids
        sequence.num_prompt = len(sequence.ids)
        check_window(sequence, self._model.context_tokens)
        self._make_room(sequence)
        sequence.restored_from = context.to_device()
        known = max(extension.keep, self._prefix_sharing.lend(sequence))
        if sequence.past is not None:
            vision = self._model.vision
            token = vision.image_token_id if vision else None
            known = same_states(context, sequence.ids, sequence.all_images, token)
        # The last id is always computed: its logits choose the first token.
        sequence.keep = max(0, min(known, context.kv.length, sequence.num_prompt - 1))
        context.cut(sequence.keep)
        sequence.cached = context.kv.length
        sequence.status = Status.RUNNING
        stopped = take_up(sequence)
        self._waiters.started(sequence)
        if sequence.cancelled:
            self.finish(sequence, "cancelled")
        elif stopped is not None:
            self.finish(sequence, stopped)
        elif sequence.num_prompt == 0:
            self.finish(sequence, "stop")  # an opening of which the template tells nothing
        else:
            self._scheduler.add(sequence)

    def _make_room(self, sequence: Sequence) -> None:
        """Keeps as much room as the turn may need, or the turns in progress would exceed the budget together."""
        context = sequence.context
        num_tokens = sequence.num_prompt + sequence.max_new_tokens
        needed = num_tokens * context.kv.token_bytes
        unseen = self._model.vision.unseen(sequence.all_images) if self._model.vision else {}
        missing = max(0, needed - context.device_bytes) + sum(unseen.values())
        if not self._table.make_room(missing):
            raise OutOfMemory(
                "the turn does not fit deviceCacheBytes beside the turns in progress",
                retry_after_s=1.0,
            )
        context.reserved, context.unseen = needed, unseen

    def _leave(self, sequence: Sequence) -> None:
        sequence.status = Status.DONE
        work = sequence.session.work
        was_first = work[0] is sequence
        work.remove(sequence)
        if was_first:
            sequence.context.unseen = {}
        if was_first and not sequence.context.incoming:
            sequence.context.reserved = 0
        if was_first and work:
            following = work[0]
            self._post(lambda: self._advance(following))
