"""The engine of models with recurrent state: takes requests, steps all sequences together, answers.

Owns the step and the order of requests. Knows nothing of processes, sockets or TorchServe: it is driven by calls of one thread,
as the engine of language models is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import clear_frames

import torch

from ts_stateful.config.schema import Config, StateConfig
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import OutOfMemory, StatefulError
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.stats import Stats
from ts_stateful.recurrent.lifecycle import Steps
from ts_stateful.recurrent.lookup import Sequences
from ts_stateful.recurrent.outbox import StepOutbox
from ts_stateful.recurrent.passes import Passes
from ts_stateful.recurrent.persistence import Backing, StepPersistence
from ts_stateful.recurrent.program import Program, load_program
from ts_stateful.recurrent.requests import RecurrentRequests
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool, initial_states, slot_bytes
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import scope_of
from ts_stateful.recurrent.verify import verify_program
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import Limits, SessionTable
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.ordered_calls import ResultQueue

__all__ = ["StateEngine", "load_engine"]

_EXPIRY_S = 1.0
_FREE_SHARE = 0.8  # of what a GPU has free beside the weights; activations need the rest


class StateEngine:
    """Runs one program on one device for the sequences of one table; `emit` takes every event.

    `max_sessions` is this engine's share of those that the configuration allows; None: all. Sequences outlive the engine in
    `backing`.
    """

    def __init__(
        self,
        program: Program,
        config: Config,
        pool: SlotPool,
        device: torch.device,
        *,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
        max_sessions: int | None = None,
        backing: Backing | None = None,
    ) -> None:
        assert config.state is not None
        self.num_parameters = program.num_parameters
        self._pool = pool
        self._clock = clock
        self._expire_at = clock()
        self._num_steps = 0
        self.table: SessionTable[SequenceState] = SessionTable(
            _limits(config, max_sessions), SharedCache(0), clock, on_expired=self._expired
        )
        self._outbox = StepOutbox(config.state, program.name, emit, clock, utc)
        self._passes = Passes(program, config.state, pool, device)
        self._persistence = StepPersistence(
            backing,
            config,
            self.table,
            pool,
            clock=clock,
            utc=utc,
            deliver=self._deliver,
            adopt=self._adopt,
        )
        self._steps, self._requests = self._assemble(config, config.state, program.name)

    def _assemble(
        self, config: Config, settings: StateConfig, model_name: str
    ) -> tuple[Steps, RecurrentRequests]:
        """What takes requests, on top of everything else that is here."""
        parts = self._outbox, self._persistence
        sequences = Sequences(settings, self.table, self._pool, self._persistence)
        steps = Steps(settings, self.table, self._pool, sequences, *parts)
        requests = RecurrentRequests(
            config,
            model_name,
            self.table,
            sequences,
            steps,
            *parts,
            self._clock,
            self.submit,
        )
        return steps, requests

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
        """The client of this request is gone. Its step runs all the same: the next ones of its sequence build on it."""

    def set_away(self, away: bool) -> None:
        """Says whether the worker is away, which makes no difference to steps."""

    def tick(self) -> None:
        """Expires what is due by the clock."""
        now = self._clock()
        if now >= self._expire_at:
            self.table.expire()
            due = self.table.next_deadline()
            self._expire_at = now + _EXPIRY_S if due is None else min(due, now + _EXPIRY_S)

    def next_deadline(self) -> float:
        """The clock's time at which `tick` has something to do."""
        return self._expire_at

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._steps) > 0

    def step(self) -> None:
        """One pass for all sequences whose next steps can run together, the longest waiting one among them."""
        jobs = self._steps.next_jobs()
        if jobs:
            self._run(jobs)

    def stats(self) -> Stats:
        """What this engine holds and has done."""
        return Stats(
            sessions_open=len(self.table),
            turns_in_progress=len(self._steps),
            device_bytes=self.table.device_bytes,
            host_bytes=self.table.host_bytes,
            steps_done=self._num_steps,
            store_failures=self._persistence.num_failed,
        )

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        self.table.check_integrity()
        self._pool.check_integrity()
        held = [session.state.slot for session in self.table if session.state.has_slot]
        assert len(set(held)) == len(held)
        assert len(held) + self._pool.num_free == self._pool.max_slots

    def _expired(self, session: Session[SequenceState]) -> None:
        self._persistence.removed(session, expired=True)

    def _adopt(self, session: Session[SequenceState], in_use: bool) -> None:
        self._steps.adopt(session, in_use=in_use)

    def _deliver(self, message: Submit, error: StatefulError | None) -> None:
        """A request has waited for its sequence."""
        if error is None:
            self.submit(message)
        else:
            self._outbox.refuse(message.request_id, error, message.command.session_id)

    def _run(self, jobs: Sequence[PendingStep]) -> None:
        """A pass. A job that makes it fail is refused, and the others run without it."""
        rows, slots = [job.row for job in jobs], [job.session.state.slot for job in jobs]
        try:
            stepped = self._passes.run(rows, slots)
        except torch.AcceleratorError:
            raise  # the device is poisoned: the process must die, and its supervisor starts another
        except Exception as error:
            clear_frames(error.__traceback__)  # or they would keep what the pass has computed
            if len(jobs) > 1:
                for job in jobs:
                    self._run([job])
            elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
                reason = OutOfMemory("the device has no memory left for this step")
                self._steps.fail(jobs[0], reason)
            else:
                self._steps.fail(jobs[0], defect(error, "a step"))
            return
        self._num_steps += len(jobs) - len(stepped.errors)
        self._steps.finish(jobs, stepped)


def load_engine(
    config: Config,
    model_dir: Path,
    device: torch.device,
    *,
    name: str,
    emit: Callable[[Event], None],
    max_sessions: int | None = None,
    store: StoreAccess | None = None,
    results: ResultQueue | None = None,
) -> StateEngine:
    """The engine for a configuration, its program proved; `name` is the model's in answers.

    `results` takes the outcomes of the `store`'s calls for the engine's thread.

    Raises:
        ConfigError: the program or a file cannot be loaded, or does not do what is declared.
    """
    settings = config.state
    assert settings is not None
    program = load_program(settings, model_dir, device, name)
    initial = initial_states(settings.states, model_dir)
    verify_program(program, settings, initial, device)
    most = max_sessions or config.frontend.max_sessions
    pool = SlotPool(settings.states, initial, device, _max_slots(settings, device, most))
    backing = (
        Backing(store, scope_of(settings, model_dir, name), results) if store and results else None
    )
    return StateEngine(
        program, config, pool, device, emit=emit, max_sessions=max_sessions, backing=backing
    )


def _limits(config: Config, max_sessions: int | None) -> Limits:
    assert config.state is not None
    frontend = config.frontend
    return Limits(
        max_sessions=max_sessions or frontend.max_sessions,
        idle_s=frontend.idle_s,
        lifetime_s=frontend.lifetime_s,
        host_bytes=config.state.host_cache_bytes or 2**63,
    )


def _max_slots(settings: StateConfig, device: torch.device, max_sessions: int) -> int:
    """Slots that fit the device's budget, at least one; no more than there may be sessions."""
    budget = settings.device_cache_bytes
    if budget is None and device.type == "cuda":
        budget = int(_FREE_SHARE * torch.cuda.mem_get_info(device)[0])
    if budget is None:
        return max_sessions
    return max(1, min(max_sessions, budget // max(1, slot_bytes(settings.states))))
