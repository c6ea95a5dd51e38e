"""Steps of few tokens as CUDA graphs: each token is a row of its own, and a step is launched as a whole."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.host_copies import to_device
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Rows, Span, Table

__all__ = ["Capturer", "CudaCapturer", "DecodeGraphs", "RowInputs"]

logger = logging.getLogger(__name__)

# Rows. The largest first, whose memory the others can share.
_SIZES: Final = tuple(2**power for power in range(7, -1, -1))
# Of the largest logit. It is the same arithmetic, if not always by the same algorithms.
_TOLERANCE: Final = 0.02
# Bytes of states that the tokens of prompts may read, each for itself: some 4 to 10 ms. A launched step reads them once, but
# its launches take 20 ms and more.
_MOST_READ: Final = 2**34
_WARM_UPS: Final = 2
_TIMED: Final = 5


class RowInputs:
    """The inputs of a step of `num_rows` rows, at fixed addresses: all int64, in one buffer."""

    def __init__(self, num_rows: int, num_layers: int, axes: tuple[int, ...], device: torch.device):
        table = num_rows * (4 + 2 * num_layers)
        sizes = (table, num_rows, num_rows * torch.Size(axes).numel())
        self._buffer = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        parts = self._buffer.split(sizes)
        self.table = Table(parts[0], num_rows, num_rows, num_rows)
        self.ids = parts[1].view(1, num_rows)
        self.positions = parts[2].view(*axes, num_rows)

    def fill(self, rows: Rows, tokens: Tensor | None = None) -> None:
        """Copy the numbers of as many rows as there is room for, without waiting for the copy.

        `tokens` are the ids of the first rows, if these are on the device.
        """
        ids = torch.tensor(rows.ids)
        numbers = torch.cat([Table.of(rows.spans).buffer, ids, rows.positions.flatten()])
        self._buffer.copy_(to_device(numbers, self._buffer.device))
        if tokens is not None:
            self.ids[0, : len(tokens)] = tokens


class DecodeStep(Protocol):
    """A model's step of one token for each session, on inputs that are on the device."""

    layout: KVLayout

    @property
    def device(self) -> torch.device:
        """The device of the step."""
        ...

    @property
    def position_axes(self) -> tuple[int, ...]:
        """The shape of positions without the rows."""
        ...

    def decode(self, inputs: RowInputs) -> Tensor:
        """Return logits `(rows, vocabulary)`."""
        ...


class Capturer(Protocol):
    """Recording of work on a device."""

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record work; return a function that repeats it on the same memory and returns the same tensor.

        May raise anything where the work cannot be recorded.
        """
        ...

    def time_ms(self, work: Callable[[], Tensor]) -> float:
        """Return the time of the work on the device, in milliseconds."""
        ...


class _Graph(NamedTuple):
    inputs: RowInputs
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """The captured steps of one model, by their number of rows. Used by one thread, on one stream.

    A model of many small layers keeps a GPU waiting for Python. Its launches are the same in every step. Only numbers change:
    ids, positions, and the addresses of states, which kernels read from a table. So the launches are recorded once, on inputs
    that stay where they are, and replayed on new numbers. A step of fewer rows is padded with tokens of an unused session.
    Tokens of a prompt are rows as well: all are written before any attends.
    """

    def __init__(self, model: DecodeStep, capturer: Capturer) -> None:
        self._model = model
        self._device = model.device
        self._capturer = capturer
        self._graphs: dict[int, _Graph] = {}
        self._unused = Span(KVCache(model.layout, self._device), 0, 1)
        self._unused.kv.reserve(1)

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows that have a graph, ascending."""
        return sorted(self._graphs)

    def __call__(self, rows: Rows, tokens: Tensor | None = None) -> Tensor | None:
        """Return a step's logits, owned by the caller; None if no graph fits. The states must have room.

        `tokens` `(rows,)`, on the device, stand for the ids of the rows, which the host may not have yet.
        """
        count = len(rows.ids)
        size = next((size for size in self.sizes if size >= count), None)
        if size is None or rows.embedded is not None or self._num_read(rows) > _MOST_READ:
            return None
        graph = self._graphs[size]
        graph.inputs.fill(self._padded(rows, size), tokens)
        logits = graph.replay()[:count]
        return logits.clone() if rows.keep is None else logits[to_device(rows.keep, logits.device)]

    def _num_read(self, rows: Rows) -> int:
        """Return the bytes of states that the tokens of prompts read."""
        prompts = [span for span in rows.spans if span.num_tokens > 1]
        return self._model.layout.token_bytes * sum(s.num_tokens * s.stop for s in prompts)

    @torch.inference_mode()
    def prepare(self, one: Rows, other: Rows) -> None:
        """Capture the steps that are faster replayed: record them on rows of `one`, verify them on rows of `other`."""
        times = []
        try:
            for size in _SIZES:
                with contextlib.suppress(torch.OutOfMemoryError):
                    times.append((size, *self._capture(size, one, other)))
        except Exception as error:  # stock code that was not made for it may raise anything
            self._graphs.clear()
            if self._device.type == "cuda":
                # Raises if the device cannot compute any more.
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
        """Keep the graph of a size if it is faster; return milliseconds of a step without it and with it."""
        model = self._model
        inputs = RowInputs(size, len(model.layout.layers), model.position_axes, self._device)

        def work() -> Tensor:
            return model.decode(inputs)

        count = min(size, len(one.ids))
        inputs.fill(self._padded(one.first(count), size))
        work()  # compiles kernels
        replay = self._capturer.capture(work)
        inputs.fill(self._padded(other.first(count), size))
        found, expected = replay().clone()[:count].float(), work()[:count].float()
        apart, largest = float((found - expected).abs().max()), float(expected.abs().max())
        if not apart <= _TOLERANCE * max(1.0, largest):  # also NaN
            raise RuntimeError(f"a replay's logits differ by {apart:.2g} of {largest:.2g}")
        eager_ms, replay_ms = self._capturer.time_ms(work), self._capturer.time_ms(replay)
        if replay_ms < eager_ms:
            self._graphs[size] = _Graph(inputs, replay)
        return eager_ms, replay_ms

    def _padded(self, rows: Rows, size: int) -> Rows:
        missing = size - len(rows.ids)
        spans = [Span(s.kv, at, 1) for s in rows.spans for at in range(s.start, s.stop)]
        return Rows(
            [*rows.ids, *[0] * missing],
            torch.nn.functional.pad(rows.positions, (0, missing)),
            [*spans, *[self._unused] * missing],
        )


class CudaCapturer:
    """Records CUDA graphs on the current device."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `Capturer`; raises before the capture if the work waits for the device, which would spoil it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _no_waiting():
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.stream(torch.cuda.current_stream()),  # restored if the capture fails
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
    """Make every wait for the device raise an error."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            # torch warns that it misses some waits. As an error, that would come with the mode already set.
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
