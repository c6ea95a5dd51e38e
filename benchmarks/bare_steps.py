"""Steps of the recurrent model without a server: by this package's engine alone, and by bare forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.pace import Pace
from benchmarks.recurrent import HANDLER, THREADS, frames, initial, load
from ts_stateful.config.schema import load_config
from ts_stateful.engine.services import Placement, Services, WorkQueue
from ts_stateful.memory import keep_freed_memory
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Step
from ts_stateful.recurrent.engine import load_engine

__all__ = ["BareSteps"]

_WARM_UPS = 3


class BareSteps:
    """Both ways in one process, in turns, with the same module, threads and inputs; `folder` is the model's."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(THREADS)
        keep_freed_memory()  # as the engine does; the floor gets it as well
        self._folder = folder
        self._module = load(folder)
        self._engines: dict[int, _Driven] = {}

    def engine(self, num_open: int, num_active: int, seconds: float) -> Pace:
        """Measure an engine with `num_open` sequences that steps `num_active` of them together, repeatedly."""
        if num_open not in self._engines:
            self._engines[num_open] = _Driven(self._folder, num_open)
        engine = self._engines[num_open]
        return _paced(lambda: engine.step(num_active), seconds)

    def floor(self, num_rows: int, seconds: float) -> Pace:
        """Measure forward passes of so many rows on the states of the previous pass, reading their outputs."""
        frame, states = frames(num_rows), initial(num_rows)

        def step() -> list[float]:
            nonlocal states
            begin = time.perf_counter()
            scores, *states = self._module(frame, *states)
            scores.tolist()
            return [time.perf_counter() - begin] * num_rows

        with torch.inference_mode():
            return _paced(step, seconds)


class _Driven:
    """An engine with open sequences, driven as its process does; answers are encoded and dropped."""

    def __init__(self, folder: Path, num_open: int) -> None:
        config = load_config({"maxNumSequence": num_open, "handler": HANDLER})
        placement = Placement(str(folder), "steps", "cpu")
        self._engine = load_engine(config, placement, Services(self, WorkQueue()))
        self._engine.kind.tune()
        self._requests = [
            Submit(
                f"request-{number}",
                Step(session_id=f"sequence-{number}"),
                (frame.numpy().tobytes(),),
                creates_session=True,
                shapes=(tuple(frame.shape),),
            )
            for number, frame in enumerate(frames(num_open))
        ]
        self._arrivals: list[float] = []
        self.step(num_open)

    def step(self, num_active: int) -> list[float]:
        """Step each of the first sequences once, requested together; return the seconds until each answer."""
        self._arrivals = []
        begin = time.perf_counter()
        for request in self._requests[:num_active]:
            self._engine.submit(request)
        while self._engine.busy:
            self._engine.tick()
            self._engine.step()
        return [at - begin for at in self._arrivals]

    def emit(self, event: Event) -> None:
        """Note when an answer came."""
        if event.status != 200:
            raise RuntimeError(event.body.decode())
        self._arrivals.append(time.perf_counter())


def _paced(step: Callable[[], Sequence[float]], seconds: float) -> Pace:
    for _ in range(_WARM_UPS):
        step()
    latencies: list[float] = []
    begin = time.perf_counter()
    while not latencies or time.perf_counter() < begin + seconds:
        latencies += step()
    return Pace.of(latencies, time.perf_counter() - begin)
