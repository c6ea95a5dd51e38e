"""Decode steps as CUDA graphs: a step of one token for each of several sessions, launched as a whole.

A model of many small layers keeps a GPU waiting for Python. What a step launches is the same every time, though, but for its
numbers: token ids, positions, and where the sessions' states lie, which kernels read from a table. So the launches are recorded
once, on inputs that stay where they are, and replayed on new numbers. States that have grown elsewhere are only other numbers.

Owns the inputs, for numbers of rows in steps of two, and the proof that a replay computes what the step computes. A step with
fewer rows fills the rest with tokens of a session of nobody's. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from ts_stateful.language.kv.cache import KVCache, KVLayout
from ts_stateful.language.kv.spans import Rows, Span, Table
from ts_stateful.language.kv.to_device import to_device

__all__ = ["Capturer", "CudaCapturer", "DecodeGraphs", "RowInputs"]

logger = logging.getLogger(__name__)

# Rows. The largest first, whose memory the others can share.
_SIZES: Final = tuple(2**power for power in range(7, -1, -1))
# Of the largest logit. It is the same arithmetic, if not always by the same algorithms.
_TOLERANCE: Final = 0.02
_WARM_UPS: Final = 2
_TIMED: Final = 5


class RowInputs:
    """What a step of `num_rows` rows reads, in memory that stays; all of it int64, in one piece."""

    def __init__(self, num_rows: int, num_layers: int, axes: tuple[int, ...], device: torch.device):
        table = num_rows * (4 + 2 * num_layers)
        sizes = (table, num_rows, num_rows * torch.Size(axes).numel())
        self._buffer = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        parts = self._buffer.split(sizes)
        self.table = Table(parts[0], num_rows, num_rows, num_rows)
        self.ids = parts[1].view(1, num_rows)
        self.positions = parts[2].view(*axes, num_rows)

    def fill(self, rows: Rows) -> None:
        """Takes the numbers of as many rows as it has room for; does not wait for the copy."""
        ids = torch.tensor(rows.ids)
        numbers = torch.cat([Table.of(rows.spans).buffer, ids, rows.positions.flatten()])
        self._buffer.copy_(to_device(numbers, self._buffer.device))


class Capturer(Protocol):
    """How work is recorded on a device."""

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What does the same again, on the same memory: every call returns the same tensor, with new content.

        May raise anything where the work cannot be recorded.
        """
        ...

    def time_ms(self, work: Callable[[], Tensor]) -> float:
        """How long it takes on the device, in milliseconds."""
        ...


class _Graph(NamedTuple):
    inputs: RowInputs
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """The captured steps of one model; `step` gives the logits `(rows, vocabulary)` of inputs that are on the device.

    `axes` is the shape of positions without the rows. Used by one thread, on one stream.
    """

    def __init__(
        self,
        step: Callable[[RowInputs], Tensor],
        layout: KVLayout,
        axes: tuple[int, ...],
        device: torch.device,
        capturer: Capturer,
    ) -> None:
        self._step = step
        self._num_layers = len(layout.layers)
        self._axes = axes
        self._device = device
        self._capturer = capturer
        self._graphs: dict[int, _Graph] = {}
        self._nobody = Span(KVCache(layout, device), 0, 1)
        self._nobody.kv.reserve(1)

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows for which there is a graph, ascending."""
        return sorted(self._graphs)

    def __call__(self, rows: Rows) -> Tensor | None:
        """The logits of a step, for the caller to keep; None if it is not captured. The states must have room."""
        count = len(rows.ids)
        size = next((size for size in self.sizes if size >= count), None)
        if size is None or count > len(rows.spans):
            return None
        graph = self._graphs[size]
        graph.inputs.fill(self._padded(rows, size))
        logits = graph.replay()[:count]
        return logits.clone() if rows.keep is None else logits[to_device(rows.keep, logits.device)]

    @torch.inference_mode()
    def prepare(self, one: Rows, other: Rows) -> None:
        """Captures what can be and is faster so: recorded on some rows of `one`, and tried on some of `other`."""
        times = []
        try:
            for size in _SIZES:
                with contextlib.suppress(torch.OutOfMemoryError):
                    times.append((size, *self._capture(size, one, other)))
        except Exception as error:  # stock code that was not made for it may raise anything
            self._graphs.clear()
            if self._device.type == "cuda":
                # Raises where nothing can be computed any more.
                torch.cuda.synchronize(self._device)
            logger.warning("decode steps are not captured: %s: %s", type(error).__name__, error)
            return
        for size, eager_ms, replay_ms in reversed(times):
            kept = "replayed" if size in self._graphs else "launched"
            logger.info(
                "a step of %d rows takes %.2f ms launched and %.2f ms replayed: it is %s",
                *(size, eager_ms, replay_ms, kept),
            )

    def _capture(self, size: int, one: Rows, other: Rows) -> tuple[float, float]:
        """Keeps the graph of a size if it is faster; returns the milliseconds of a step without it and with it."""
        inputs = RowInputs(size, self._num_layers, self._axes, self._device)

        def work() -> Tensor:
            return self._step(inputs)

        count = min(size, len(one.ids))
        inputs.fill(self._padded(_first(one, count), size))
        work()  # whatever is compiled or looked up with the first call
        replay = self._capturer.capture(work)
        inputs.fill(self._padded(_first(other, count), size))
        found, expected = replay().clone()[:count].float(), work()[:count].float()
        apart, largest = float((found - expected).abs().max()), float(expected.abs().max())
        if not apart <= _TOLERANCE * max(1.0, largest):  # also where it is no number
            raise RuntimeError(f"a replay's logits differ by {apart:.2g} of {largest:.2g}")
        eager_ms, replay_ms = self._capturer.time_ms(work), self._capturer.time_ms(replay)
        if replay_ms < eager_ms:
            self._graphs[size] = _Graph(inputs, replay)
        return eager_ms, replay_ms

    def _padded(self, rows: Rows, size: int) -> Rows:
        missing = size - len(rows.ids)
        return Rows(
            [*rows.ids, *[0] * missing],
            torch.nn.functional.pad(rows.positions, (0, missing)),
            [*rows.spans, *[self._nobody] * missing],
        )


def _first(rows: Rows, count: int) -> Rows:
    return Rows(rows.ids[:count], rows.positions[..., :count], rows.spans[:count])


class CudaCapturer:
    """Records CUDA graphs on the current device."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `Capturer`; raises where the work waits for the device, before that could spoil a capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _no_waiting():
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.stream(torch.cuda.current_stream()),  # comes back to it if the capture fails
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            output = work()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    def time_ms(self, work: Callable[[], Tensor]) -> float:
        """See `Capturer`."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()
        begin.record()
        for _ in range(_TIMED):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / _TIMED


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Makes whatever waits for the device raise an error."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            # That it does not find everything; as an error it would come when the mode is set already.
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
