"""A stand-in for CUDA graphs where there is no GPU: it repeats work instead of replaying it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class PlainCapturer:
    """Implements `cuda_graphs.Capturer`. Like a graph, a replay reads the captured memory and returns one tensor."""

    def __init__(self, replay_ms: float = 1.0, work_ms: float = 2.0) -> None:
        self.num_captured = 0
        self.num_replays = 0
        self._replays: list[Callable[[], Tensor]] = []
        self._replay_ms, self._work_ms = replay_ms, work_ms

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that repeats the work."""
        output = work().clone()
        self.num_captured += 1

        def replay() -> Tensor:
            self.num_replays += 1
            return output.copy_(work())

        self._replays.append(replay)
        return replay

    def time_ms(self, work: Callable[[], Tensor]) -> float:
        """Return the time that the test set."""
        return self._replay_ms if work in self._replays else self._work_ms
