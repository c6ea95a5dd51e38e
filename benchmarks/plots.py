"""The plots of a run, as PNG. A plot without samples is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from benchmarks.names import (
    ASGI_BATCHES,
    ASGI_STREAMS,
    ASYNC_GRPC,
    ASYNC_HTTP,
    BARE,
    CACHES,
    DECODE,
    ENGINE,
    GROWTH_FIRST,
    GROWTH_OPEN,
    GROWTH_STEP,
    GRPC,
    HTTP,
    IMPLICIT,
    LLAMA,
    LLAMA_DECODE,
    LLAMA_TTFT,
    MEMORY,
    PUBLISHED,
    RECOMPUTE,
    STEPS,
    STREAMS,
    TEXT_ASGI,
    TEXT_HTTP,
    TTFT,
    TURNS,
    VLLM,
    VLLM_DECODE,
    VLLM_TTFT,
    floor_name,
)
from benchmarks.ratios import floor_of
from benchmarks.samples import Samples, spread_of

__all__ = ["draw"]

_FLOOR = "floor"
_LOOKS: Final[dict[str, dict[str, Any]]] = {
    _FLOOR: {"color": "#6b7280", "linestyle": "--", "marker": "", "label": "floor: bare forward"},
    HTTP: {"color": "#0f62fe", "marker": "o", "label": "HTTP"},
    IMPLICIT: {"color": "#ff832b", "marker": "v", "label": "HTTP, all messages and no session"},
    GRPC: {"color": "#009d9a", "marker": "s", "label": "gRPC, pulled"},
    ASYNC_HTTP: {"color": "#78a9ff", "marker": "o", "markerfacecolor": "white", "label": "HTTP, async profile"},
    ASYNC_GRPC: {"color": "#3ddbd9", "marker": "s", "markerfacecolor": "white", "label": "gRPC, async profile"},
    RECOMPUTE: {"color": "#da1e28", "marker": "^", "label": "recompute every turn"},
    TEXT_HTTP: {"color": "#0f62fe", "marker": "o", "label": "HTTP, text model"},
    TEXT_ASGI: {"color": "#009d9a", "marker": "s", "label": "HTTP without TorchServe, text model"},
    BARE: {"color": "#6b7280", "linestyle": "--", "marker": "", "label": "floor: bare batched forward"},
    ENGINE: {"color": "#8a3ffc", "marker": "o", "label": "engine alone"},
    STREAMS: {"color": "#009d9a", "marker": "s", "label": "through TorchServe (gRPC, sequence profile)"},
    ASGI_STREAMS: {"color": "#0f62fe", "marker": "s", "label": "without TorchServe (gRPC)"},
    ASGI_BATCHES: {"color": "#ff832b", "marker": "D", "label": "without TorchServe, all in one request"},
    PUBLISHED: {"color": "#da1e28", "marker": "^", "label": "published pattern through TorchServe"},
    LLAMA: {"color": "#f1620e", "marker": "D", "label": "llama.cpp"},
    VLLM: {"color": "#8a3ffc", "marker": "D", "label": "vLLM"},
}  # fmt: skip
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": "#374151",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def draw(samples: Samples, folder: Path, caption: str) -> list[Path]:
    """Write the plots that the samples allow into `folder`; `caption` names machine and date."""
    drawn = []
    with mpl.rc_context(_STYLE):
        for name, needs, plot in (
            ("ttft", TTFT, _ttft),
            ("decode", DECODE, _decode),
            ("memory", MEMORY, _memory),
            ("growth", GROWTH_FIRST, _growth),
            ("steps", STEPS, _steps),
            ("llama", LLAMA_DECODE, partial(_beside, LLAMA, LLAMA_TTFT, LLAMA_DECODE)),
            ("vllm", VLLM_DECODE, partial(_beside, VLLM, VLLM_TTFT, VLLM_DECODE)),
        ):
            if any(sample.measure == needs for sample in samples.all):
                drawn.append(_saved(samples, folder / f"{name}.png", plot, caption))
    return drawn


def _saved(
    samples: Samples, path: Path, plot: Callable[[Samples, Figure], None], caption: str
) -> Path:
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    plot(samples, figure)
    figure.supxlabel(caption, fontsize=7.5, color="#6b7280", x=0.99, ha="right")
    figure.savefig(path, dpi=160)
    return path


def _ttft(samples: Samples, figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title("Time to first token of a 20-token prompt")
    systems = (RECOMPUTE, GRPC, HTTP, IMPLICIT, ASYNC_GRPC, ASYNC_HTTP, _FLOOR)
    _lines(axes, samples, TTFT, systems)
    _history_axis(axes, samples, TTFT)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds (log)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(ncols=2, loc="upper left", fontsize=9)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 4)  # room for the legend


def _decode(samples: Samples, figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title("Decode throughput, 500 tokens of history in each stream")
    _lines(axes, samples, DECODE, (_FLOOR, HTTP))
    _lines(axes, samples, TURNS, (RECOMPUTE,))
    _stream_axis(axes)
    axes.legend(loc="upper left", fontsize=9)


def _memory(samples: Samples, figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title("Memory of idle sessions, 500 tokens and an image each")
    looks = {
        "engine": {**_LOOKS[HTTP], "label": "engine process, above its first reading"},
        "state": {**_LOOKS[_FLOOR], "label": "KV states and embeddings"},
    }
    for system, look in looks.items():
        points = [(sample.x, sample.value) for sample in samples.of(MEMORY, system)]
        origin = points[0][1]
        axes.plot([x for x, _ in points], [(y - origin) / 1e6 for _, y in points], **look)
    first = min(sample.x for sample in samples.of(MEMORY, "engine"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("open sessions")
    axes.set_ylabel(f"MB more than with {first} sessions")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=9)


def _growth(samples: Samples, figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title("One engine of a very small text model, 10 sessions active")
    lines = {
        GROWTH_OPEN: {**_LOOKS[RECOMPUTE], "label": "opening with a first turn"},
        GROWTH_FIRST: {**_LOOKS[HTTP], "label": "time to first token"},
        GROWTH_STEP: {**_LOOKS[GRPC], "label": "a step"},
    }
    for measure, look in lines.items():
        sizes = sorted({sample.x for sample in samples.of(measure, ENGINE)})
        medians = [samples.median(measure, ENGINE, size) or 0.0 for size in sizes]
        axes.plot(sizes, medians, **look)
    axes.set_xscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("open sessions")
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9)


def _steps(samples: Samples, figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title("Steps of a recurrent model, one frame each")
    _lines(axes, samples, STEPS, (BARE, ENGINE, ASGI_BATCHES, ASGI_STREAMS, STREAMS, PUBLISHED))
    _doubling_axis(axes)
    axes.set_xticks(sorted({sample.x for sample in samples.all if sample.measure == STEPS}))
    axes.set_xlabel("sequences that step at the same time")
    axes.set_yscale("log")
    axes.set_ylabel("steps a second")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(loc="upper left", fontsize=9)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 12)  # room for the legend


def _beside(other: str, ttft: str, decode: str, samples: Samples, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    left.set_title("Time to first token")
    _lines(left, samples, ttft, (TEXT_ASGI, TEXT_HTTP, other))
    _history_axis(left, samples, ttft)
    left.set_ylabel("milliseconds")
    left.set_ylim(bottom=0)
    left.legend(loc="upper left", fontsize=9)
    right.set_title("Decode throughput")
    _lines(right, samples, decode, (TEXT_ASGI, TEXT_HTTP, other))
    _stream_axis(right)


def _lines(axes: Axes, samples: Samples, measure: str, systems: Sequence[str]) -> None:
    """Plot medians as lines, 10th to 90th percentiles as bands."""
    for system in systems:
        if system == _FLOOR:
            _floor_line(axes, samples, measure)
            continue
        places = sorted({sample.x for sample in samples.of(measure, system)})
        if not places:
            continue
        spreads = [spread_of([s.value for s in samples.of(measure, system, x)]) for x in places]
        look = _LOOKS[system]
        axes.plot(places, [spread.median for spread in spreads], **look)
        low, high = [s.low for s in spreads], [s.high for s in spreads]
        axes.fill_between(places, low, high, color=look["color"], alpha=0.13, linewidth=0)


def _floor_line(axes: Axes, samples: Samples, measure: str) -> None:
    found = [sample for cache in CACHES for sample in samples.of(measure, floor_name(cache))]
    medians = {x: floor_of(samples, measure, x) for x in sorted({sample.x for sample in found})}
    points = [(x, median) for x, median in medians.items() if median is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **_LOOKS[_FLOOR])


def _history_axis(axes: Axes, samples: Samples, measure: str) -> None:
    axes.set_xlabel("tokens of history")
    axes.set_xlim(left=0)
    axes.set_xticks(sorted({sample.x for sample in samples.all if sample.measure == measure}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _doubling_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _stream_axis(axes: Axes) -> None:
    _doubling_axis(axes)
    axes.set_xlabel("concurrent streams")
    axes.set_ylabel("tokens a second")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=0)
