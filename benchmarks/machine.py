"""Facts besides the code that affect numbers: the machine, the versions, the date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from benchmarks.servers import ROOT
from ts_stateful.torchserve.java import java_environment

__all__ = ["describe"]

_PACKAGES = (
    "torchserve-stateful",
    "torchserve",
    "torch",
    "transformers",
    "tokenizers",
    "grpcio",
)


def describe(threads: int) -> dict[str, Any]:
    """Return them for JSON. `other_load` is the share of the usable cores that other processes take now."""
    usable = sorted(os.sched_getaffinity(0))
    busy = psutil.cpu_percent(interval=1.0, percpu=True)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(usable),
        "cores_of_machine": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "other_load": round(sum(busy[core] for core in usable) / 100 / len(usable), 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "commit": _first_line(["git", "describe", "--always", "--dirty"]),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _first_line(command: list[str]) -> str:
    environ = {**os.environ, **java_environment(os.environ)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return (done.stdout or done.stderr).partition("\n")[0].strip() or "unknown"
