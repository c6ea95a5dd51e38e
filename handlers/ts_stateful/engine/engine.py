"""The engine: takes requests, runs all turns together, answers.

Owns the step. Knows nothing of processes, sockets or TorchServe: it is driven by calls of one thread (`submit`, `drop`,
`tick`, `step`) and speaks through the `emit` that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor

import torch
from torch import Tensor

from ts_stateful.config import Config
from ts_stateful.defects import defect
from ts_stateful.engine import reports
from ts_stateful.engine.audience import Audience
from ts_stateful.engine.commands import Commands
from ts_stateful.engine.context import Context
from ts_stateful.engine.model import Model
from ts_stateful.engine.outbox import Outbox
from ts_stateful.engine.runner import Runner
from ts_stateful.engine.sampler import sample
from ts_stateful.engine.scheduler import Scheduler, Step
from ts_stateful.engine.sequence import Sequence, Status
from ts_stateful.engine.turns import LoadImages, Turns
from ts_stateful.errors import OutOfMemory, StatefulError, TurnGap
from ts_stateful.events import Describe, Event, Submit
from ts_stateful.figures import Figures
from ts_stateful.protocol import Open, Prompt
from ts_stateful.sessions.table import Limits, SessionTable

__all__ = ["Engine"]

_EXPIRY_S = 1.0  # how often the table is looked through, for sessions that were opened since the last time
_FREE_SHARE = 0.8  # of what a GPU has free beside the weights; activations need the rest


class Engine:
    """Runs one model on one device for the sessions of one table; `emit` takes every event."""

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
        self.table = _table(model, config, clock)
        self._model = model
        self._config = config
        self._clock = clock
        self._started_at = self._expire_at = clock()
        self._num_tokens = 0
        self._runner = Runner(model)
        self._scheduler: Scheduler[Sequence] = Scheduler(config.handler.prefill_chunk)
        self._outbox = Outbox(emit, clock, utc)
        self._audience = Audience(self._outbox, config.handler.reattach_sec, clock)
        self._turns = Turns(
            model,
            self.table,
            self._scheduler,
            self._audience,
            self._outbox,
            load_images=load_images,
            executor=executor,
            post=post,
            clock=clock,
        )
        self._commands = Commands(
            config, model, self.table, self._turns, self._audience, self._outbox, clock
        )

    def submit(self, message: Submit) -> None:
        """Takes a request; every request gets exactly one terminal event, now or later."""
        try:
            if isinstance(message.command, Describe):
                uptime_s = self._clock() - self._started_at
                document = reports.describe(self._config, self.figures(), uptime_s)
                self._outbox.answer(message.request_id, document)
            else:
                self._commands.handle(message)
        except StatefulError as error:
            self._outbox.refuse(message.request_id, error, message.command.session_id)
        except Exception as error:  # the boundary: a defect fails the request that met it
            kind = type(message.command).__name__
            self._outbox.refuse(message.request_id, defect(error, f"taking {kind}"))

    def drop(self, request_id: str) -> None:
        """The client of this request is gone."""
        self._audience.drop(request_id)

    def set_away(self, away: bool) -> None:
        """Says whether the worker is away; turns then wait for their clients until it is back."""
        self._audience.set_away(away)

    def tick(self) -> None:
        """Does what is due by the clock: expiry, turns that nobody waits for, `continue`s that have waited enough."""
        now = self._clock()
        if now >= self._expire_at:
            self.table.expire()
            due = self.table.next_deadline()
            self._expire_at = now + _EXPIRY_S if due is None else min(due, now + _EXPIRY_S)
        for sequence in self._audience.tick():
            gone = TurnGap("the turn was rolled back: its client was gone for too long")
            self._turns.fail(sequence, gone)

    def next_deadline(self) -> float:
        """The clock's time at which `tick` has something to do."""
        due = self._audience.next_deadline()
        return self._expire_at if due is None else min(due, self._expire_at)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._scheduler) > 0

    def step(self) -> None:
        """One step: a chunk of prefill, a token for every turn that decodes, and what follows from them."""
        step = self._scheduler.schedule()
        ready = self._prefill(step) + self._decode(step.decode)
        if ready:
            rows = [sequence.row for sequence, _ in ready]
            tokens = sample(torch.stack([logits for _, logits in ready]), rows)
            for (sequence, _), token in zip(ready, tokens, strict=True):
                try:
                    self._take(sequence, token)
                except Exception as error:  # a tokenizer may raise anything; the other rows go on
                    self._turns.fail(sequence, defect(error, "taking a token"))

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        self.table.check_integrity()
        self._scheduler.check_integrity()
        for session in self.table:
            context = session.state
            assert session.busy or context.kv.length <= len(context.log)
            assert context.dialogue.num_turns == len(session.turns)

    def _prefill(self, step: Step[Sequence]) -> list[tuple[Sequence, Tensor]]:
        sequence = step.prefill
        if sequence is None:
            return []
        logits = self._guarded(sequence, lambda: self._runner.prefill(sequence, step.chunk))
        self._turns.token_bytes = sequence.context.kv.token_bytes or self._turns.token_bytes
        if logits is None or sequence.num_to_prefill:
            return []
        if isinstance(sequence.command, Open):
            self._turns.finish(sequence, "stop")
            return []
        return [(sequence, logits)]

    def _decode(self, sequences: list[Sequence]) -> list[tuple[Sequence, Tensor]]:
        ready = []
        for sequence in sequences:
            logits = self._guarded(sequence, lambda s=sequence: self._runner.decode(s))  # type: ignore[misc]
            if logits is not None:
                ready.append((sequence, logits))
        return ready

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
                    self._turns.fail(sequence, defect(error, "a forward pass"))
                    return None
                if attempt == 1:
                    self.table.evict_idle()
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
        self._turns.fail(sequence, OutOfMemory("the device has no memory left for this turn"))
        return None

    def _take(self, sequence: Sequence, token: int) -> None:
        command, reply = sequence.command, sequence.reply
        assert isinstance(command, Prompt)
        assert reply is not None
        assert sequence.status is Status.RUNNING
        self._num_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = self._clock()
        if token in self._model.eos_ids and not command.ignore_eos:
            self._turns.finish(sequence, "stop")
            return
        sequence.ids.append(token)
        if reply.push(token):
            self._turns.finish(sequence, "stop")
        elif sequence.num_generated >= sequence.max_new_tokens:
            self._turns.finish(sequence, "length")
        else:
            self._audience.progressed(sequence)

    def figures(self) -> Figures:
        """What this engine holds and has done."""
        vision = self._model.vision
        return Figures(
            sessions_open=len(self.table),
            turns_in_progress=len(self._audience),
            device_bytes=self.table.device_bytes,
            host_bytes=self.table.host_bytes,
            tokens_generated=self._num_tokens,
            images_encoded=vision.num_encoded if vision else 0,
        )


def _table(model: Model, config: Config, clock: Callable[[], float]) -> SessionTable[Context]:
    frontend, settings = config.frontend, config.handler
    on_cpu = (
        model.device.type == "cpu"
    )  # where host memory is the device's, there is no step between
    device_bytes = settings.device_cache_bytes
    if device_bytes is None and model.device.type == "cuda":
        device_bytes = int(_FREE_SHARE * torch.cuda.mem_get_info(model.device)[0])
    limits = Limits(
        max_sessions=frontend.max_sessions,
        idle_s=frontend.idle_s,
        lifetime_s=frontend.lifetime_s,
        device_bytes=device_bytes,
        host_bytes=0 if on_cpu else settings.host_cache_bytes,
    )
    return SessionTable(limits, clock)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
