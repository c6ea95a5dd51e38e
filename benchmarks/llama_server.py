"""llama.cpp's `llama-server` for the text part of the model, with a slot for each conversation.

It runs under favorable conditions. Conversations are pinned to slots, prompts are token ids, and their cached prefixes are
reused. Only the requested threads compete for the processors, and nothing is saved elsewhere.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.model import CONTEXT
from benchmarks.other_server import OtherServer
from ts_stateful.serving.ports import HOST, Ports

__all__ = ["LlamaServer"]

_SLOTS = 32
_START_S = 60.0


class LlamaServer(OtherServer):
    """A context manager; `port` answers within it. `LLAMA_ARGS` in the environment adds options to its command."""

    def __init__(
        self, binary: Path, model: Path, log: Path, *, threads: int, options: Sequence[str] = ()
    ) -> None:
        port = Ports().filled().http
        options = [*shlex.split(os.environ.get("LLAMA_ARGS", "")), *options]
        command = [str(binary), "--model", str(model), "--host", HOST]
        command += ["--port", str(port), "--threads", str(threads)]
        command += ["--parallel", str(_SLOTS), "--ctx-size", str(_SLOTS * CONTEXT)]
        command += ["--cache-ram", "0", "--no-cache-idle-slots", *options]
        super().__init__("llama-server", command, port, log, start_s=_START_S)
        self.free_slots = list(range(_SLOTS))
        self.about = " ".join([_version(binary), *options])


def _version(binary: Path) -> str:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    lines = (done.stderr + done.stdout).splitlines()
    return next((line for line in lines if "version" in line), "unknown").strip()
