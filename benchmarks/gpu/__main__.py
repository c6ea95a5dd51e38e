"""`python -m benchmarks.gpu`: measure, print a page of Markdown, and write it and the raw samples."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import logging
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import LlamaForCausalLM

from benchmarks.driver import Driver
from benchmarks.gpu import baselines
from benchmarks.gpu.engine import Bench, num_read
from benchmarks.gpu.network import FULL, TINY, Size, build, text_part
from benchmarks.progress import Progress
from benchmarks.servers import ROOT
from ts_stateful.config.schema import Config, load_config
from ts_stateful.language.network.load import Model, accelerate, build_model

_NO_GPU: Final = """\
torch found no NVIDIA GPU, so nothing was measured.
`python -m benchmarks.gpu --tiny` shows on a CPU that the benchmark runs; its numbers mean nothing.
"""

Results = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status: 2 where there is nothing to measure."""
    options = _parser().parse_args(arguments)
    if not (torch.cuda.is_available() or options.tiny):
        sys.stderr.write(_NO_GPU)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    size = TINY if options.tiny else FULL
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    handler = {
        "attentionKernels": options.kernels,
        "cudaGraphs": options.graphs,
        "fusedLayers": options.fused,
    }
    config = load_config({"batchSize": 64, "handler": handler})
    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    about = _about(device, dtype, handler)
    document = {"about": about, "size": size._asdict()}
    progress = Progress(1 if options.engine_only else 2)
    samples = Samples(folder / "results.json", document, progress)
    measure(size, device, dtype, config, samples, engine_only=options.engine_only)
    page = report(size, samples.results, about)
    (folder / "report.md").write_text(page)
    sys.stdout.write(page)
    return 0


class Samples:
    """Raw samples by name, written to a file after each one, with `about` what they are of. Shows the progress on stderr."""

    def __init__(self, path: Path, about: dict[str, Any], progress: Progress) -> None:
        self.results: Results = {}
        self.progress = progress
        self._path, self._about = path, about

    def add(self, name: str, sample: float) -> None:
        """Add a sample."""
        self.results.setdefault(name, []).append(sample)
        document = {**self._about, "samples": self.results}
        self._path.write_text(json.dumps(document, indent=1) + "\n")

    def take(self, name: str, work: Callable[[], float]) -> None:
        """Add what `work` returns; log and leave out what does not fit or cannot run here."""
        try:
            self.add(name, work())
        except Exception as error:  # of a library, any; the other samples are still valid
            logging.warning("%s: %s: %s", name, type(error).__name__, error)
        self.progress.step(name)


def measure(
    size: Size,
    device: torch.device,
    dtype: torch.dtype,
    config: Config,
    samples: Samples,
    *,
    engine_only: bool,
) -> None:
    """Measure the engine, and what it is compared with unless `engine_only`."""
    samples.add("copy_bytes_per_s", baselines.copy_bandwidth(size.copied, device))
    network, processor = build(size, device, dtype)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model = build_model("llava", network, processor)
    accelerate(model, config.handler)
    samples.add("weight_bytes", float(_weight_bytes(model)))
    samples.add("token_bytes", float(model.forward.layout.token_bytes))
    with samples.progress.stage("the engine"), Driver(model, config) as driver:
        _measure_engine(Bench(driver, device, size.history), size, samples)
    if engine_only:
        return
    del driver, model
    gc.collect()
    torch.cuda.empty_cache()  # no effect without a GPU
    with samples.progress.stage("`generate` and continuous batching"):
        _measure_baselines(text_part(network), size, samples)


def _measure_engine(bench: Bench, size: Size, samples: Samples) -> None:
    samples.progress.expect(size.rounds * (len(size.rows) + 3))
    for _ in range(size.rounds):
        for rows in size.rows:
            samples.take(f"engine_step_ms_{rows}", partial(bench.decode_ms, rows, size.steps))
            bench.clear()
        for name, from_host in (("resident", False), ("host", True)):
            work = partial(bench.first_token_ms, size.num_new, from_host=from_host)
            samples.take(f"engine_first_ms_{name}", work)
            bench.clear()
        samples.take("restore_ms", bench.restore_ms)
        bench.clear()


def _measure_baselines(text: LlamaForCausalLM, size: Size, samples: Samples) -> None:
    transcript = size.history + size.num_new
    samples.progress.expect(size.rounds * (len(size.rows) + 2) + len(size.rows))
    for _ in range(size.rounds):
        work = partial(baselines.bare_pass_ms, text, size.history, size.num_new)
        samples.take("bare_pass_ms", work)
        work = partial(baselines.generate_first_ms, text, transcript)
        samples.take("generate_first_ms", work)
        for rows in size.rows:
            work = partial(baselines.generate_decode_ms, text, rows, size.history, size.steps)
            samples.take(f"generate_step_ms_{rows}", work)
    for rows in size.rows:  # once: every run begins with seconds of warm-up
        work = partial(baselines.continuous_decode_ms, text, rows, size.history, size.steps)
        samples.take(f"continuous_step_ms_{rows}", work)


def report(size: Size, results: Results, about: dict[str, Any]) -> str:
    """Return a page of Markdown."""
    bandwidth, weights = results["copy_bytes_per_s"][0], results["weight_bytes"][0]
    per_token = results["token_bytes"][0]
    lines = [
        f"{about['device']}, {about['dtype']}, {about['date'][:10]}, torch {about['torch']}, "
        f"transformers {about['transformers']}; attention kernels {about['attentionKernels']}, fused layers "
        f"{about['fusedLayers']}, graphs {about['cudaGraphs']}.",
        f"Memory is copied at {bandwidth / 1e9:.0f} GB/s; the weights of a step are {weights / 1e9:.2f} GB, "
        f"a token's states {per_token / 1e3:.0f} kB.",
        "",
        f"Decoding, {num_read(size.history, size.steps):.0f} tokens of history in every row, tokens/s:",
        "",
        "| rows | engine | of the floor | floor (weights and states read once a step) | `generate` | continuous batching |",
        "|---|---|---|---|---|---|",
    ]
    for rows in size.rows:
        states = rows * num_read(size.history, size.steps) * per_token
        floor_ms = 1000 * (weights + states) / bandwidth
        steps = [
            _median(results, f"{s}_step_ms_{rows}") for s in ("engine", "generate", "continuous")
        ]
        engine, *others = [_rate(rows, ms) for ms in steps]
        share = "-" if steps[0] is None else f"{floor_ms / steps[0]:.2f}"
        cells = [str(rows), engine, share, _rate(rows, floor_ms), *others]
        lines.append(f"| {' | '.join(cells)} |")
    times = {
        "engine, states on the device": "engine_first_ms_resident",
        "engine, states in host memory": "engine_first_ms_host",
        f"bringing {size.history * per_token / 1e6:.0f} MB back from there": "restore_ms",
        "the stock network's pass, states on the device": "bare_pass_ms",
        "`generate`, nothing kept": "generate_first_ms",
    }
    lines += ["", f"| first token after {size.history} + {size.num_new} | ms |", "|---|---|"]
    lines += [f"| {what} | {_ms(_median(results, name))} |" for what, name in times.items()]
    return "\n".join(lines) + "\n"


def _weight_bytes(model: Model) -> int:
    """Return the bytes that a decode step reads: the text part without embeddings, of which it reads a row a token."""
    network = model.network
    embeddings = network.get_input_embeddings().weight
    parts = (network.model.language_model, network.lm_head)
    parameters = {p for part in parts for p in part.parameters() if p is not embeddings}
    return sum(p.nbytes for p in parameters)


def _median(results: Results, name: str) -> float | None:
    return statistics.median(results[name]) if results.get(name) else None


def _rate(rows: int, step_ms: float | None) -> str:
    return "-" if step_ms is None else f"{1000 * rows / step_ms:,.0f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _about(device: torch.device, dtype: torch.dtype, handler: dict[str, bool]) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **handler,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Measure the engine alone on an NVIDIA GPU, on a LLaVA-1.5-7B with random weights in bfloat16.",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model, on a CPU too: check that it runs"
    )
    parser.add_argument(
        "--no-kernels", dest="kernels", action="store_false", help="attention by torch's operators"
    )
    parser.add_argument(
        "--no-graphs", dest="graphs", action="store_false", help="launch every decode step"
    )
    parser.add_argument(
        "--no-fused", dest="fused", action="store_false", help="decoder layers by torch's operators"
    )
    parser.add_argument(
        "--engine-only", action="store_true", help="without `generate` and continuous batching"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "bench-gpu",
        metavar="FOLDER",
        help="default: build/bench-gpu",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
