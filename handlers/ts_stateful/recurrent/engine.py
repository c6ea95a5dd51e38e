"""Models with recurrent state as a kind of model for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from traceback import clear_frames

import torch

from ts_stateful.config.schema import Config, StateConfig
from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.engine import SessionEngine
from ts_stateful.engine.services import Placement, Services
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.memory import keep_freed_memory
from ts_stateful.protocol.answers import SessionInfo
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import OutOfMemory
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Info, Open, Step
from ts_stateful.protocol.stats import Stats
from ts_stateful.recurrent.few_rows import choose_library
from ts_stateful.recurrent.lifecycle import StepLifecycle
from ts_stateful.recurrent.lookup import Sequences
from ts_stateful.recurrent.outbox import StepOutbox
from ts_stateful.recurrent.passes import Passes, Stepped
from ts_stateful.recurrent.persistence import NoStepPersistence, StepPersistence
from ts_stateful.recurrent.program import Program, load_program
from ts_stateful.recurrent.reports import info
from ts_stateful.recurrent.requests import RecurrentRequests
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool, initial_states, slot_bytes
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import Answered, FoundSequence, scope_of
from ts_stateful.recurrent.verify import verify_program
from ts_stateful.sessions.places import UNLIMITED_BYTES, Limits
from ts_stateful.sessions.session import Session

__all__ = ["RecurrentKind", "build_engine", "load_engine"]

_FREE_SHARE = 0.8  # of what a GPU has free beside the weights; activations need the rest


class RecurrentKind:
    """Implements `ModelKind` for a model whose states are kept between steps; `scope` is its place in the store."""

    fatal: type[Exception] = torch.AcceleratorError

    def __init__(
        self, core: EngineCore[SequenceState], program: Program, pool: SlotPool, scope: str
    ) -> None:
        settings = core.config.state
        assert settings is not None
        self.num_parameters = program.num_parameters
        self._core = core
        self._program = program
        self._settings = settings
        self._pool = pool
        self._num_steps = 0
        self._passes = Passes(program, settings, pool)
        outbox = StepOutbox(core, settings, program.name)
        self.persistence = NoStepPersistence()
        if core.store is not None:
            self.persistence = StepPersistence(core, core.store, pool, scope)
        sequences = Sequences(core, settings, pool, self.persistence)
        self._steps = StepLifecycle(core, settings, sequences, outbox, self.persistence)
        self._requests = RecurrentRequests(core, sequences, self._steps, outbox, self.persistence)

    def tune(self) -> None:
        """See `ModelKind`."""
        keep_freed_memory()
        choose_library(self._program, self._settings, self._pool.initial)

    def admit(self, request: PendingRequest) -> None:
        """See `ModelKind`."""
        self._requests.handle(request)

    def searches_first(self, message: Submit, session_id: str) -> bool:
        """Return True: the store decides if a step begins a sequence."""
        return True

    def adopt(self, session_id: str, found: FoundSequence, *, in_use: bool) -> Missing | None:
        """See `ModelKind`."""
        session = self.persistence.restored(session_id, found)
        if session is not None and self._steps.adopt(session, in_use=in_use):
            return None
        return Missing(position=found.position)

    def reads(self, message: Submit, session: Session[SequenceState]) -> bool:
        """See `ModelKind`. A step that is sent again is answered from its record."""
        command = message.command
        repeats = isinstance(command, Step) and command.turn == session.state.num_steps
        return repeats or isinstance(command, Info | Fork | Open)

    def drop(self, request_id: str) -> None:
        """Do nothing: the step runs all the same, since the next ones of its sequence build on it."""

    def set_away(self, away: bool) -> None:
        """Do nothing: steps do not wait for clients."""

    def tick(self) -> None:
        """Do nothing: nothing is due by the clock but expiry."""

    def next_deadline(self) -> float | None:
        """See `ModelKind`."""
        return None

    @property
    def busy(self) -> bool:
        """See `ModelKind`."""
        return len(self._steps) > 0

    def step(self) -> None:
        """Run the steps that have waited longest, and those that can run beside them."""
        steps = self._steps.next_steps()
        if steps:
            self._run(steps)

    def stats(self) -> Stats:
        """See `ModelKind`."""
        return Stats(turns_in_progress=len(self._steps), steps_done=self._num_steps)

    def describe(self, session: Session[SequenceState]) -> SessionInfo:
        """See `ModelKind`."""
        return info(session, self._core.clock)

    def check_integrity(self) -> None:
        """See `ModelKind`."""
        self._pool.check_integrity()
        held = [session.state.slot for session in self._core.table if session.state.has_slot]
        assert len(set(held)) == len(held)
        assert len(held) + self._pool.num_free == self._pool.max_slots

    def _run(self, steps: Sequence[PendingStep]) -> None:
        """Run a pass. A step that makes it fail is refused, and the others run without it."""
        try:
            stepped, answers = self._stepped(steps)
        except torch.AcceleratorError:
            raise  # the device is poisoned: the process must die, and its supervisor starts another
        except Exception as error:  # a model may raise anything
            clear_frames(error.__traceback__)  # or they would keep what the pass has computed
            if len(steps) > 1:
                for step in steps:
                    self._run([step])
            elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
                reason = OutOfMemory("the device has no memory left for this step")
                self._steps.fail(steps[0], reason)
            else:
                self._steps.fail(steps[0], defect(error, "a step"))
            return
        self._num_steps += len(steps) - len(stepped.errors)
        self._steps.finish(steps, stepped, answers)

    def _stepped(self, steps: Sequence[PendingStep]) -> tuple[Stepped, Sequence[Answered]]:
        """Return the results and the answers of a pass. If this raises, all states are as they were."""
        rows, slots = [step.row for step in steps], [step.session.state.slot for step in steps]
        stepped = self._passes.run(rows, slots)
        answers = self._steps.answers(steps, stepped)  # a result of the model may not be readable
        self._passes.keep(stepped)
        return stepped, answers


def build_engine(
    program: Program,
    config: Config,
    pool: SlotPool,
    services: Services,
    *,
    max_sessions: int | None = None,
    scope: str = "",
) -> SessionEngine[SequenceState]:
    """Return an engine for a loaded program; `max_sessions` is its share of the configuration's, None: all."""
    core: EngineCore[SequenceState] = EngineCore(config, _limits(config, max_sessions), services)
    return SessionEngine(core, RecurrentKind(core, program, pool, scope))


def load_engine(
    config: Config, placement: Placement, services: Services
) -> SessionEngine[SequenceState]:
    """Load a program, verify it and return its engine.

    Raises:
        ConfigError: the program or a file cannot be loaded, or does not do what is declared.
    """
    settings, folder = config.state, Path(placement.model_dir)
    assert settings is not None
    device = torch.device(placement.device)
    services.progress.begin("loading the program")
    program = load_program(settings, folder, device, placement.model_name)
    initial = initial_states(settings.states, folder)
    services.progress.begin("checking the program")
    verify_program(program, settings, initial, device)
    most = placement.max_sessions or config.frontend.max_sessions
    pool = SlotPool(settings.states, initial, device, _max_slots(settings, device, most))
    scope = scope_of(settings, folder, placement.model_name) if services.store else ""
    return build_engine(program, config, pool, services, max_sessions=most, scope=scope)


def _limits(config: Config, max_sessions: int | None) -> Limits:
    assert config.state is not None
    frontend = config.frontend
    return Limits(
        max_sessions=max_sessions or frontend.max_sessions,
        idle_s=frontend.idle_s,
        lifetime_s=frontend.lifetime_s,
        host_bytes=config.state.host_cache_bytes or UNLIMITED_BYTES,
    )


def _max_slots(settings: StateConfig, device: torch.device, max_sessions: int) -> int:
    """Return the slots that fit the device's budget: at least one, no more than there may be sessions."""
    budget = settings.device_cache_bytes
    if budget is None and device.type == "cuda":
        budget = int(_FREE_SHARE * torch.cuda.mem_get_info(device)[0])
    if budget is None:
        return max_sessions
    return max(1, min(max_sessions, budget // max(1, slot_bytes(settings.states))))
