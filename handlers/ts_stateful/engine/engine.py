"""The engine: takes requests, runs all turns together, answers.

Owns the life of every turn, from its request to its commit or roll-back. Knows nothing of processes, sockets or TorchServe:
it is driven by calls of one thread (`submit`, `drop`, `tick`, `step`) and speaks through the `emit` that it is given.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence as Items
from concurrent.futures import Executor

import PIL.Image
import torch
from torch import Tensor

from ts_stateful.config import Config
from ts_stateful.engine.commands import Commands
from ts_stateful.engine.model import Model
from ts_stateful.engine.outbox import Outbox, usage_of
from ts_stateful.engine.reply import ReplyText
from ts_stateful.engine.runner import Runner
from ts_stateful.engine.sampler import sample
from ts_stateful.engine.scheduler import Scheduler, Step
from ts_stateful.engine.sequence import Sequence, Status
from ts_stateful.engine.text import Extension
from ts_stateful.engine.vision import ImageInput
from ts_stateful.errors import (
    ContextTooLong,
    InternalError,
    OutOfMemory,
    SessionNotFound,
    StatefulError,
)
from ts_stateful.events import Event, Submit
from ts_stateful.protocol import Image, Open, Prompt
from ts_stateful.sessions.session import Turn
from ts_stateful.sessions.table import Limits, SessionTable

__all__ = ["Engine", "LoadImages"]

logger = logging.getLogger(__name__)

LoadImages = Callable[[Items[Image], Items[bytes]], "list[PIL.Image.Image]"]


class Engine:
    """Runs one model on one device for the sessions of one table.

    `load_images` fetches and decodes; it runs on `executor`, and `post` brings its outcome back to the engine's thread.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        *,
        emit: Callable[[Event], None],
        load_images: LoadImages,
        executor: Executor,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        frontend, settings = config.frontend, config.handler
        limits = Limits(
            max_sessions=frontend.max_sessions,
            idle_s=frontend.idle_s,
            lifetime_s=frontend.lifetime_s,
            device_bytes=settings.device_cache_bytes,
            host_bytes=settings.host_cache_bytes if model.device.type != "cpu" else 0,
        )
        self.table: SessionTable = SessionTable(limits, clock)
        self.model = model
        self.num_tokens = 0  # generated since the start
        self._runner = Runner(model)
        self._scheduler: Scheduler[Sequence] = Scheduler(settings.prefill_chunk)
        self._outbox = Outbox(emit, clock, utc)
        self._commands = Commands(self, config, self._outbox, clock)
        self._load_images = load_images
        self._executor = executor
        self._post = post
        self._clock = clock
        self._token_bytes = 0

    # Driven by the process around it.

    def submit(self, message: Submit) -> None:
        """Takes a request; every request gets exactly one terminal event, now or later."""
        try:
            self._commands.handle(message)
        except StatefulError as error:
            self._outbox.refuse(message.request_id, error, message.command.session_id)
        except Exception as error:  # the boundary: a defect fails the request that met it
            self._outbox.refuse(message.request_id, self._defect(error))

    def drop(self, request_id: str) -> None:
        """The client of this request is gone."""
        self._commands.drop(request_id)

    def tick(self) -> None:
        """Does what is due by the clock: expiry, turns that nobody waits for, `continue`s that have waited enough."""
        self.table.expire()
        self._commands.tick()

    def next_deadline(self) -> float | None:
        """The clock's time at which `tick` has something to do, or None."""
        deadlines = (self.table.next_deadline(), self._commands.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._scheduler) > 0

    def step(self) -> None:
        """One step: a chunk of prefill, a token for every turn that decodes, and what follows from them."""
        step = self._scheduler.schedule()
        done = self._prefill(step) + self._decode(step.decode)
        running = [(seq, logits) for seq, logits in done if seq.status is Status.RUNNING]
        if running:
            tokens = sample(torch.stack([logits for _, logits in running]), [s.row for s, _ in running])
            for (sequence, _), token in zip(running, tokens, strict=True):
                self._take(sequence, token)

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        self.table.check_integrity()
        self._scheduler.check_integrity()
        for session in self.table:
            context = session.state
            assert context.kv.length <= len(context.log) or session.busy
            assert context.dialogue.num_turns == len(session.turns)

    # The life of a turn.

    def admit(self, sequence: Sequence, images: Items[Image], attachments: Items[bytes]) -> None:
        """Takes a turn into its session; it runs once its images are there and the turns before it are done."""
        sequence.session.work.append(sequence)
        if not images and not attachments:
            sequence.status = Status.WAITING
            self.advance(sequence)
            return
        vision = self.model.vision
        assert vision is not None

        def load() -> None:
            try:
                made: list[ImageInput] | StatefulError = [
                    vision.prepare(image) for image in self._load_images(images, attachments)
                ]
            except StatefulError as error:
                made = error
            except Exception as error:  # the boundary of a media thread
                made = self._defect(error)
            self._post(lambda: self._loaded(sequence, made))

        self._executor.submit(load)

    def advance(self, sequence: Sequence) -> None:
        """Starts the turn if it is the next of its session and has what it needs."""
        if sequence.status is not Status.WAITING or sequence.session.work[0] is not sequence:
            return
        sequence.started_at = self._clock()
        try:
            self._start(sequence)
        except StatefulError as error:
            self.fail(sequence, error)
        except Exception as error:  # a template or tokenizer may raise anything
            self.fail(sequence, self._defect(error))

    def fail(self, sequence: Sequence, error: StatefulError) -> None:
        """Rolls the turn back: the session stands where its last committed turn left it."""
        session, context = sequence.session, sequence.context
        if sequence.status is Status.RUNNING:
            context.kv.truncate(sequence.keep)
            context.failed = (sequence.number, error)
        self._scheduler.remove(sequence)
        self._outbox.failed(sequence, error)
        self._leave(sequence)
        if sequence.opens and not session.turns:
            for other in list(session.work):
                other.status = Status.DONE
                self._outbox.failed(other, SessionNotFound("the session could not be opened"))
                self._commands.forget(other)
            session.work.clear()
            self.table.forget(session)

    def finish(self, sequence: Sequence, reason: str) -> None:
        """Commits the turn as it stands."""
        session, context = sequence.session, sequence.context
        self._scheduler.remove(sequence)
        if isinstance(sequence.command, Prompt):
            assert sequence.reply is not None
            text = sequence.reply.finish()
            kept = sequence.num_prompt + sequence.reply.num_kept
            turn = Turn(
                sequence.number,
                text,
                reason,
                usage_of(sequence),
                self._outbox.timing_of(sequence),
            )
            context.log = sequence.ids[:kept]
            assert sequence.message is not None
            self.model.text.commit(context.dialogue, sequence.message, sequence.rendered, text)
            session.turns.append(turn)
            context.failed = None
        else:
            context.log = sequence.ids
        context.kv.truncate(len(context.log))
        context.images += sequence.images
        sequence.images = []
        self.table.touch(session)
        if isinstance(sequence.command, Prompt):
            self._outbox.finished(sequence, turn)
        else:
            self._outbox.opened(sequence)
        self._leave(sequence)

    def _loaded(self, sequence: Sequence, made: list[ImageInput] | StatefulError) -> None:
        if sequence.status is Status.DONE:
            return
        if isinstance(made, StatefulError):
            self.fail(sequence, made)
            return
        sequence.images = made
        sequence.status = Status.WAITING
        self.advance(sequence)

    def _start(self, sequence: Sequence) -> None:
        context, command = sequence.context, sequence.command
        if isinstance(command, Prompt):
            sequence.number = len(sequence.session.turns) + 1
            self._commands.check_number(command.turn, sequence.number)
            extension = self._extend(sequence, command)
        else:
            ids = self.model.text.opening(context.dialogue, [i.ids for i in sequence.images])
            extension = Extension(0, ids, "")
        sequence.rendered = extension.rendered
        sequence.ids = context.log[: extension.keep] + extension.ids
        sequence.num_prompt = len(sequence.ids)
        self._check_window(sequence)
        # The last id is always computed: its logits choose the first token.
        sequence.keep = max(0, min(extension.keep, context.kv.length, sequence.num_prompt - 1))
        self._make_room(sequence)
        sequence.restored_from = context.to_device()
        context.kv.truncate(sequence.keep)
        sequence.cached = context.kv.length
        sequence.status = Status.RUNNING
        for subscriber in list(sequence.subscribers):
            self._outbox.accepted(sequence, subscriber)
        self._commands.started(sequence)
        if sequence.cancelled:
            self.finish(sequence, "cancelled")
        elif sequence.num_prompt == 0:
            self.finish(sequence, "stop")  # an opening of which the template tells nothing
        else:
            self._scheduler.add(sequence)

    def _extend(self, sequence: Sequence, command: Prompt) -> Extension:
        context, text = sequence.context, self.model.text
        sequence.message = text.user_message(
            context.dialogue, command.prompt, len(sequence.images)
        )
        sequence.reply = ReplyText(self.model.tokenizer.backend_tokenizer, command.stop_strings)
        expansions = [image.ids for image in sequence.all_images]
        return text.extend(context.dialogue, context.log, sequence.message, expansions)

    def _check_window(self, sequence: Sequence) -> None:
        window, need = self.model.context_tokens, sequence.num_prompt
        generates = isinstance(sequence.command, Prompt)
        if need + generates > window:
            used = len(sequence.context.log)
            raise ContextTooLong(
                f"history, prompt and images are {need} tokens and the context window is {window}; "
                f"{max(0, window - used - 1)} tokens are left for a prompt",
                field="prompt" if generates else "images",
            )
        if isinstance(sequence.command, Prompt):
            sequence.max_new_tokens = min(sequence.command.max_new_tokens, window - need)

    def _make_room(self, sequence: Sequence) -> None:
        missing = sequence.num_prompt + sequence.max_new_tokens - sequence.context.kv.length
        if not self.table.make_room(max(0, missing) * self._token_bytes):
            raise OutOfMemory(
                "the turn does not fit deviceCacheBytes beside the turns in progress",
                retry_after_s=1.0,
            )

    def _prefill(self, step: Step[Sequence]) -> list[tuple[Sequence, Tensor]]:
        sequence = step.prefill
        if sequence is None:
            return []
        logits = self._guarded(sequence, lambda: self._runner.prefill(sequence, step.chunk))
        self._token_bytes = sequence.context.kv.token_bytes or self._token_bytes
        if logits is None or sequence.num_to_prefill:
            return []
        if isinstance(sequence.command, Open):
            self.finish(sequence, "stop")
            return []
        return [(sequence, logits)]

    def _decode(self, sequences: list[Sequence]) -> list[tuple[Sequence, Tensor]]:
        outcome = []
        for sequence in sequences:
            if sequence.status is not Status.RUNNING:  # an opening that has just ended
                continue
            logits = self._guarded(sequence, lambda s=sequence: self._runner.decode(s))  # type: ignore[misc]
            if logits is not None:
                outcome.append((sequence, logits))
        return outcome

    def _guarded(self, sequence: Sequence, forward: Callable[[], Tensor]) -> Tensor | None:
        """The outcome of a forward pass; a turn whose pass fails is rolled back and disturbs no other."""
        length = sequence.context.kv.length
        for attempt in (1, 2):
            try:
                return forward()
            except torch.AcceleratorError:
                raise  # the device is poisoned: the process must die, and its supervisor starts another
            except Exception as error:
                sequence.context.kv.truncate(length)
                if not _is_out_of_memory(error):
                    self.fail(sequence, self._defect(error))
                    return None
                if attempt == 1:
                    self.table.evict_idle()
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
        self.fail(sequence, OutOfMemory("the device has no memory left for this turn"))
        return None

    def _take(self, sequence: Sequence, token: int) -> None:
        command, reply = sequence.command, sequence.reply
        assert isinstance(command, Prompt) and reply is not None
        self.num_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = self._clock()
        if token in self.model.eos_ids and not command.ignore_eos:
            self.finish(sequence, "stop")
            return
        sequence.ids.append(token)
        if reply.push(token):
            self.finish(sequence, "stop")
        elif sequence.num_generated >= sequence.max_new_tokens:
            self.finish(sequence, "length")
        else:
            self._outbox.progress(sequence)
            self._commands.progressed(sequence)

    def _leave(self, sequence: Sequence) -> None:
        sequence.status = Status.DONE
        work = sequence.session.work
        was_first = work[0] is sequence
        work.remove(sequence)
        self._commands.forget(sequence)
        if was_first and work:
            following = work[0]
            self._post(lambda: self.advance(following))

    def _defect(self, error: Exception) -> InternalError:
        """Logs what only we should see; the client gets an id by which the trace is found."""
        defect_id = uuid.uuid4().hex[:12]
        logger.error("internal error %s", defect_id, exc_info=error)
        return InternalError(f"internal error {defect_id}; the server's log has the trace")


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
