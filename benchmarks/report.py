"""Results as files: JSON, and a page of Markdown.

`results.json` has `machine`, `plan`, `ratios`, `targets`, `medians` and the raw `samples`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.names import (
    DECODE,
    FAMILIES,
    FIRST_OPEN,
    FORMS,
    GROWTH_FIRST,
    GROWTH_MEMORY,
    GROWTH_OPEN,
    GROWTH_STEP,
    LLAMA_DECODE,
    LLAMA_PREFILL,
    LLAMA_TTFT,
    MANY,
    MEMORY,
    OPEN_STEP,
    PAUSE,
    PROBE,
    REPEATED_OPEN,
    SPEC_NEW,
    SPEC_REPEATING,
    SPEC_RIGHT,
    STEP_MEDIAN,
    STEP_P99,
    STEPS,
    TTFT,
    TURNS,
    VISION,
    VLLM_DECODE,
    VLLM_PREFILL,
    VLLM_TTFT,
    of_family,
)
from benchmarks.plan import Plan
from benchmarks.ratios import RATIOS, ratios_of
from benchmarks.samples import Samples, Spread, spread_of

__all__ = ["ratio_table", "write_report", "write_results"]

_METHOD = """\
Every number is a median of interleaved runs, with its 10th and 90th percentiles. Clients run on the same cores as what they
measure. *http* and *grpc* are the continuous profile (gRPC: the package's own client, which pulls); *async* is the profile
that pushes. *floor* is the bare forward pass of stock `transformers` in a process of its own while the servers are idle, on
`DynamicCache` and on `StaticCache`; ratios take the faster one. *recompute* is a TorchServe handler that keeps the image's
tensor and computes everything else again in every turn, one turn at a time. Histories grow by 24 tokens with every prompt and
are the mean of those that were measured. `decode` counts while all streams run; `turns` from sending the prompts to the end of
the last reply. *engine alone* is this package's engine of recurrent models, *bare forward* its model on kept states, both in
one process with one thread; *published pattern* is a TorchServe handler that keeps states by sequence id in a dictionary and
runs the rows of a batch one by one. A sequence sends a step when the one before is answered.
"""
_TITLES = {
    TTFT: "Time to first token of a 20-token prompt, by tokens of history",
    DECODE: "Decode throughput, by concurrent streams",
    TURNS: "Throughput of whole turns, by concurrent streams",
    FIRST_OPEN: "Opening with a new image, by tokens of the opening",
    REPEATED_OPEN: "Opening with an image that is in use, by tokens of the opening",
    VISION: "Vision tower and projector for an image, by its tokens",
    MEMORY: "Memory, by open sessions",
    MANY: "Time to first token of active sessions, by open sessions",
    GROWTH_FIRST: "Very small text model: time to first token, by open sessions",
    GROWTH_STEP: "Very small text model: a step of one session, by open sessions",
    GROWTH_OPEN: "Very small text model: an opening with a first turn, by open sessions",
    GROWTH_MEMORY: "Very small text model: memory of the process beyond its sessions' states, by open sessions",
    PAUSE: "Longest pause of a stream, by tokens of another session's prompt",
    FORMS: "Text model: time in which every row gets a token, by rows",
    **{of_family(name): f"Family {name}: decode rate, by rows" for name in FAMILIES},
    SPEC_REPEATING: "Trained text model: decode rate of one stream, replies that repeat their history",
    SPEC_NEW: "Trained text model: decode rate of one stream, replies that do not",
    SPEC_RIGHT: "Trained text model: percent of drafted tokens that were right",
    STEPS: "Recurrent model: steps a second, by sequences that step at the same time",
    STEP_MEDIAN: "Recurrent model: median of a step's latency, by sequences that step at the same time",
    STEP_P99: "Recurrent model: 99th percentile of a step's latency, by sequences that step at the same time",
    OPEN_STEP: "Recurrent model: what a step costs the engine, 8 sequences active, by open sequences",
    LLAMA_TTFT: "Text model: time to first token, by tokens of history",
    LLAMA_PREFILL: "Text model: time to first token without a history, by tokens of the prompt",
    LLAMA_DECODE: "Text model: decode throughput, by concurrent streams",
    VLLM_TTFT: "Text model beside vLLM: time to first token, by tokens of history",
    VLLM_PREFILL: "Text model beside vLLM: time to first token without a history, by tokens of the prompt",
    VLLM_DECODE: "Text model beside vLLM: decode throughput, by concurrent streams",
}


def write_results(path: Path, machine: dict[str, Any], plan: Plan, samples: Samples) -> None:
    """Write results.json."""
    medians = [
        {"measure": measure, "system": system, "x": x, "unit": unit, **spread._asdict()}
        for (measure, system, x, unit), spread in samples.groups().items()
    ]
    document = {
        "machine": machine,
        "plan": msgspec.to_builtins(plan),
        "ratios": ratios_of(samples),
        "targets": {ratio.name: f"{ratio.bound} {ratio.target:g}" for ratio in RATIOS},
        "medians": medians,
        "samples": samples.to_builtins(),
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_report(
    path: Path, machine: dict[str, Any], samples: Samples, plots: Iterable[Path], *, quick: bool
) -> None:
    """Write report.md, which shows the plots beside it."""
    parts = ["# Benchmark\n"]
    if quick:
        parts.append("**A quick run: too few samples to be quoted.**\n")
    parts += [_machine_line(machine), _evenness(samples), ratio_table(ratios_of(samples)), _METHOD]
    parts += [f"![{plot.stem}]({plot.name})\n" for plot in plots]
    groups = samples.groups()
    for measure, title in _TITLES.items():
        rows = [(key, spread) for key, spread in groups.items() if key[0] == measure]
        if rows:
            parts += [f"## {title}\n", _measure_table(rows)]
    path.write_text("\n".join(parts))


def ratio_table(ratios: dict[str, float]) -> str:
    """Return the ratios beside their targets."""
    lines = ["| ratio | measured | target | |", "|---|---|---|---|"]
    for ratio in RATIOS:
        if ratio.name in ratios:
            value = ratios[ratio.name]
            met = "met" if ratio.is_met(value) else "**missed**"
            target = f"{ratio.bound} {ratio.target:g}, {met}"
            lines.append(f"| `{ratio.name}` | {value:.2f} | {target} | {ratio.meaning} |")
    return "\n".join(lines) + "\n"


def _machine_line(machine: dict[str, Any]) -> str:
    dtypes = machine["text_dtypes"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    busy = machine["other_load"]
    other = f" Other processes took {busy:.0%} of these cores at first." if busy > 0.1 else ""
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} of {machine['cores_of_machine']}"
        f" cores, {machine['threads']} threads, {machine['memory_gib']} GiB; text model in"
        f" {dtypes['weights']}, computed by our servers in {dtypes['computed']}; commit"
        f" {machine['commit']}; {versions}; Python {machine['python']}; {machine['java']}.{other}\n"
    )


def _evenness(samples: Samples) -> str:
    found = [sample.value for sample in samples.all if sample.measure == PROBE]
    if not found:
        return ""
    return (
        f"A fixed piece of work, timed before the samples, took {_cell(spread_of(found), 'ms')}."
        " On an otherwise idle machine all are equal; the more they differ, the less the numbers below mean.\n"
    )


def _measure_table(rows: Sequence[tuple[tuple[str, str, int, str], Spread]]) -> str:
    """Return a table with a line for each system and a column for each place on the abscissa."""
    places = sorted({key[2] for key, _ in rows})
    systems = list(dict.fromkeys(key[1] for key, _ in rows))
    cells = {(key[1], key[2]): _cell(spread, key[3]) for key, spread in rows}
    lines = ["| |" + "".join(f" {place:,} |" for place in places)]
    lines.append("|---|" + "---|" * len(places))
    for system in systems:
        found = (cells.get((system, place), "") for place in places)
        lines.append(f"| {system} |" + "".join(f" {cell} |" for cell in found))
    return "\n".join(lines) + "\n"


def _cell(spread: Spread, unit: str) -> str:
    scale, shown = (1e6, "MB") if unit == "bytes" else (1.0, unit)
    digits = 0 if unit != "ms" or spread.median >= 100 else 1 if spread.median >= 10 else 2
    median, low, high = (
        f"{value / scale:,.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    extent = f" ({low} to {high}, n={spread.size})" if spread.size > 1 else ""
    return f"{median} {shown}{extent}"
