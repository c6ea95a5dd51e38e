"""The engine: takes requests, runs all turns together, answers.

Owns the step. Knows nothing of processes, sockets or TorchServe: it is driven by calls of one thread (`submit`, `drop`,
`tick`, `step`) and speaks through the `emit` that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from traceback import clear_frames

import torch
from torch import Tensor

from ts_stateful.config.schema import Config
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.recompute_cost import RecomputeCost
from ts_stateful.language.conversation.turn import Sequence, Status
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.kv.to_device import to_device
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.memory import is_out_of_memory, limits_of
from ts_stateful.language.network.sampler import sample
from ts_stateful.language.persistence.persistence import make_persistence
from ts_stateful.language.runner import Logits, Runner
from ts_stateful.language.scheduler import Chunk, Scheduler
from ts_stateful.language.turns.lifecycle import LoadImages, Turns
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.language.turns.requests import LanguageRequests
from ts_stateful.language.turns.waiters import Waiters
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import OutOfMemory, StatefulError, TurnGap
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Open, Prompt
from ts_stateful.protocol.stats import Stats
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.ordered_calls import ResultQueue

__all__ = ["Engine"]

# How often the table is looked through, for sessions that were opened since the last time.
_EXPIRY_S = 1.0


class Engine:
    """Runs one model on one device for the sessions of one table; `emit` takes every event.

    `max_sessions` is this engine's share of those that the configuration allows; None: all. Without a `store`, sessions end
    with the engine.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        *,
        emit: Callable[[Event], None],
        load_images: LoadImages,
        executor: Executor,
        results: ResultQueue,
        clock: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
        max_sessions: int | None = None,
        store: StoreAccess | None = None,
    ) -> None:
        self._shared = SharedCache[ImageInput | Prefix](config.handler.shared_cache_bytes)
        limits, cost = limits_of(model, config, max_sessions), RecomputeCost(model)
        self.table: SessionTable[Context] = SessionTable(
            limits, self._shared, clock, on_expired=self._expired, recompute_cost=cost
        )
        self._persistence = make_persistence(
            model,
            store,
            self.table,
            self._shared,
            results=results,
            clock=clock,
            utc=utc,
            idle_s=limits.idle_s,
            spill=config.handler.store.spill_bytes,
        )
        self.num_parameters = model.num_parameters
        self._model = model
        self._clock = clock
        self._expire_at = clock()
        self._num_tokens = 0
        self._runner = Runner(model)
        self._scheduler: Scheduler[Sequence] = Scheduler(config.handler.prefill_chunk)
        self._outbox = TurnOutbox(emit, clock, utc, config.handler.stream_interval_sec)
        self._waiters = Waiters(self._outbox, config.handler.reattach_sec, clock)
        self._turns, self._requests = self._assemble(config, load_images, executor, results)

    def _assemble(
        self,
        config: Config,
        load_images: LoadImages,
        executor: Executor,
        results: ResultQueue,
    ) -> tuple[Turns, LanguageRequests]:
        """What takes requests, on top of everything else that is here."""
        turns = Turns(
            self._model,
            self.table,
            self._scheduler,
            self._waiters,
            self._outbox,
            shared=self._shared,
            load_images=load_images,
            executor=executor,
            post=results.put,
            clock=self._clock,
            persistence=self._persistence,
        )
        commands = LanguageRequests(
            config,
            self._model,
            self.table,
            turns,
            self._waiters,
            self._outbox,
            self._clock,
            persistence=self._persistence,
            is_retry=self.submit,
        )
        return turns, commands

    def _expired(self, session: Session[Context]) -> None:
        self._persistence.ended(session, "expired")

    def submit(self, message: Submit) -> None:
        """Takes a request; every request gets exactly one terminal event, now or later."""
        try:
            self._requests.handle(message)
        except StatefulError as error:
            self._outbox.refuse(message.request_id, error, message.command.session_id)
        except Exception as error:  # the boundary: a defect fails the request that met it
            kind = type(message.command).__name__
            self._outbox.refuse(message.request_id, defect(error, f"taking {kind}"))

    def drop(self, request_id: str) -> None:
        """The client of this request is gone."""
        self._persistence.drop(request_id)
        self._waiters.drop(request_id)

    def set_away(self, away: bool) -> None:
        """Says whether the worker is away; turns then wait for their clients until it is back."""
        self._waiters.set_away(away)

    def tick(self) -> None:
        """Does what is due by the clock: expiry, turns that nobody waits for, `continue`s that have waited enough."""
        now = self._clock()
        if now >= self._expire_at:
            self.table.expire()
            due = self.table.next_deadline()
            self._expire_at = now + _EXPIRY_S if due is None else min(due, now + _EXPIRY_S)
        for sequence in self._waiters.tick():
            if sequence.status in (Status.COMMITTING, Status.DONE):  # failed with the one before it
                continue
            gone = TurnGap("the turn was rolled back: its client was gone for too long")
            self._turns.fail(sequence, gone)

    def next_deadline(self) -> float:
        """The clock's time at which `tick` has something to do."""
        due = self._waiters.next_deadline()
        return self._expire_at if due is None else min(due, self._expire_at)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._scheduler) > 0

    def step(self) -> None:
        """One step: a token for every turn that decodes, chunks of prompts beside them, and what follows from them."""
        logits = self._forward(self._scheduler.schedule())
        prompts = []
        for index, sequence in enumerate(logits.sequences):
            if isinstance(sequence.command, Open):
                self._turns.finish(sequence, "stop")
            else:
                prompts.append((index, sequence))
        if not prompts:
            return
        rows = logits.rows
        if len(prompts) < len(logits.sequences):
            rows = rows[to_device([index for index, _ in prompts], rows.device)]
        tokens = self._choose(rows, [sequence for _, sequence in prompts])
        for (_, sequence), token in zip(prompts, tokens, strict=True):
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
            context.check_integrity(session.turns)

    def _forward(self, chunks: list[Chunk[Sequence]]) -> Logits:
        """The outcome of a step's passes. A turn that makes them fail is rolled back and disturbs no other."""
        try:
            return self._runner.run(chunks)
        except torch.AcceleratorError:
            raise  # the device is poisoned: the process must die, and its supervisor starts another
        except Exception as error:
            clear_frames(error.__traceback__)  # or they would keep what the pass has computed
            out_of_memory = is_out_of_memory(error)
            if out_of_memory and self._free_memory():
                return self._forward(chunks)
            if len(chunks) > 1:
                return Logits.join([self._forward([chunk]) for chunk in chunks])
            reason = (
                OutOfMemory("the device has no memory left for this turn")
                if out_of_memory
                else defect(error, "a forward pass")
            )
            ((sequence, _),) = chunks
            self._turns.fail(sequence, reason)
            return Logits([], torch.empty(0))

    def _choose(self, rows: Tensor, sequences: list[Sequence]) -> list[int]:
        """The next token of each; for want of memory, idle sessions are evicted, or rows take it one after the other."""

        def choose() -> list[int]:
            allowed = self._model.penalties(rows, [sequence.ids for sequence in sequences])
            return sample(allowed, [sequence.row for sequence in sequences])

        try:
            return choose()
        except torch.OutOfMemoryError as error:
            clear_frames(error.__traceback__)
            if self._free_memory():
                return self._choose(rows, sequences)
            if len(sequences) == 1:
                raise
            single = zip(rows.split(1), sequences, strict=True)
            return [token for row, one in single for token in self._choose(row, [one])]

    def _free_memory(self) -> bool:
        """Evicts every idle session; returns whether that has freed anything."""
        before = self.table.device_bytes
        self.table.evict_idle()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return self.table.device_bytes < before

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
            self._waiters.progressed(sequence)

    def stats(self) -> Stats:
        """What this engine holds and has done."""
        vision, spill = self._model.vision, self._persistence.spill
        return Stats(
            sessions_open=len(self.table),
            turns_in_progress=len(self._waiters),
            device_bytes=self.table.device_bytes,
            host_bytes=self.table.host_bytes,
            tokens_generated=self._num_tokens,
            images_encoded=vision.num_encoded if vision else 0,
            shared_hits=self._shared.num_found,
            shared_bytes=self._shared.num_bytes,
            store_failures=self._persistence.num_failed,
            spilled_bytes=spill.num_bytes if spill else 0,
            spill_reads=spill.num_read if spill else 0,
            spill_failures=spill.num_failed if spill else 0,
            upload_bytes=self._requests.upload_bytes,
        )
