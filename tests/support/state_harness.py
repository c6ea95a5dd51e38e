"""An engine of a model with recurrent state, driven by hand: no process, no server, a clock that stands still."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from tests.support.clock import FakeClock
from tests.support.harness import LaterExecutor
from ts_stateful.config.schema import Config, FrontendConfig, StateConfig, load_config
from ts_stateful.engine.services import Services, WorkQueue
from ts_stateful.protocol.events import Encoding, Event, EventKind, Submit
from ts_stateful.protocol.requests import Request, Step
from ts_stateful.protocol.tensors import Elements, read_inputs
from ts_stateful.recurrent.engine import build_engine
from ts_stateful.recurrent.program import Program
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import Store
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = ["StateHarness", "state_settings"]

CPU = torch.device("cpu")


def state_settings(**handler: Any) -> StateConfig:
    """A declaration, as it is written in YAML; the model itself is given apart."""
    config = load_config({"handler": {"model": "none", **handler}})
    assert config.state is not None
    return config.state


class StateHarness:
    """Submits requests, runs passes, and keeps what was answered. `num_calls` counts calls of the model.

    With a `store`, what its threads would do is done by `run`, or by `executor` and `pump` when a test says so.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        settings: StateConfig,
        *,
        initial: Sequence[Tensor] | None = None,
        max_slots: int = 64,
        store: Store | None = None,
        scope: str = "states-model",
        clock: FakeClock | None = None,
        numbers: Iterator[int] | None = None,
        **frontend: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self._numbers = numbers or count(1)  # of requests
        self.events: dict[str, Event] = {}
        self.num_calls = 0
        self.settings = settings
        keys = {"max_num_sequence": 64, "max_sequence_job_queue_size": 64, **frontend}
        config = Config(frontend=FrontendConfig(**keys), state=settings)

        def counted(*tensors: Tensor) -> Any:
            self.num_calls += 1
            return module(*tensors)

        if initial is None:
            initial = [
                torch.zeros([max(0, size) for size in state.shape]).unsqueeze(state.rows_dim)
                for state in settings.states
            ]
        pool = SlotPool(settings.states, initial, CPU, max_slots)
        parameters = module.parameters() if isinstance(module, nn.Module) else ()
        num_parameters = sum(weight.numel() for weight in parameters)
        program = Program(counted, settings, name="model", num_parameters=num_parameters)
        self.executor = LaterExecutor()
        self._queue = WorkQueue()
        access = StoreAccess(store, settings.store.policy, self.executor) if store else None
        calls = StoreCalls(access, self._queue, self.clock) if access else None
        services = Services(self, self._queue, self.clock, calls)
        self.engine = build_engine(program, config, pool, services, scope=scope)

    def submit(
        self,
        command: Request,
        *,
        creates_session: bool | None = None,
        encoding: Encoding = Encoding.JSON,
        is_retry: str | None = None,
        may_wait: bool = True,
        may_begin: bool = True,
    ) -> str:
        """Hands in a request as a worker does; the id by which its answer is found. A session that nobody knows is opened.

        `is_retry` is the id that the request had when another engine got it, which is gone.
        """
        request_id = is_retry or f"request-{next(self._numbers)}"
        elements: list[Elements] = []
        if isinstance(command, Step):
            declared = [tensor for tensor in self.settings.inputs if not tensor.is_derived]
            elements = read_inputs(declared, command.inputs, {})
            known = any(session.session_id == command.session_id for session in self.engine.table)
            creates_session = not known if creates_session is None else creates_session
            command = msgspec.structs.replace(command, inputs=())
        self.engine.submit(
            Submit(
                request_id,
                command,
                tuple(tensor.data for tensor in elements),
                creates_session=bool(creates_session),
                shapes=tuple(tensor.shape for tensor in elements),
                encoding=encoding,
                is_retry=is_retry is not None,
                may_wait=may_wait,
                may_begin=may_begin,
            )
        )
        self.engine.check_integrity()
        return request_id

    def run(self) -> None:
        """Runs passes until nothing waits."""
        self.pump()
        while self.engine.busy:
            self.engine.step()
            self.pump()
            self.engine.check_integrity()

    def hear(self) -> None:
        """Let the engine's thread take what one of the store's threads has for it."""
        self._queue.run_next()
        self.engine.settle()

    def pump(self) -> None:
        """Does what the store's threads would do, and the engine's thread behind it."""
        while self.executor.jobs or self._queue.run_next():
            self.engine.settle()
            self.executor.run()

    def ask(self, command: Request, **options: Any) -> dict[str, Any]:
        """The answer to a request."""
        request_id = self.submit(command, **options)
        self.run()
        return self.answer(request_id)

    def answer(self, request_id: str) -> dict[str, Any]:
        """The document that a request was answered with."""
        document: dict[str, Any] = json.loads(self.events[request_id].body)
        return document

    def code(self, request_id: str) -> str:
        """The code of the error that a request was answered with."""
        return str(self.answer(request_id)["error"]["code"])

    def emit(self, event: Event) -> None:
        """Keep an answer; there is one for each request."""
        if event.kind is EventKind.ADOPTED:
            return
        assert event.request_id not in self.events, "answered twice"
        self.events[event.request_id] = event
