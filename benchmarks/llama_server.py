"""llama.cpp's `llama-server` for the text part of the model, with a slot for each conversation.

It runs under favorable conditions. Conversations are pinned to slots, prompts are token ids, and their cached prefixes are
reused. Only the requested threads compete for the processors, and nothing is saved elsewhere.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.model import CONTEXT
from ts_stateful.serving.ports import HOST, Ports

__all__ = ["LlamaServer"]

_SLOTS = 32
_START_S = 60.0
_STOP_S = 10.0


class LlamaServer:
    """A context manager; `port` answers within it. `LLAMA_ARGS` in the environment adds options to its command."""

    def __init__(
        self, binary: Path, model: Path, log: Path, *, threads: int, options: Sequence[str] = ()
    ) -> None:
        self.port = Ports().filled().http
        self.free_slots = list(range(_SLOTS))
        options = [*shlex.split(os.environ.get("LLAMA_ARGS", "")), *options]
        self.about = " ".join([_version(binary), *options])
        self._log = log
        self._command = [str(binary), "--model", str(model), "--host", HOST]
        self._command += ["--port", str(self.port), "--threads", str(threads)]
        self._command += ["--parallel", str(_SLOTS), "--ctx-size", str(_SLOTS * CONTEXT)]
        self._command += ["--cache-ram", "0", "--no-cache-idle-slots", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LlamaServer:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                tail = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"llama-server did not start:\n{tail}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        failures = (OSError, http.client.HTTPException)
        with contextlib.closing(connection), contextlib.suppress(*failures):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False


def _version(binary: Path) -> str:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    lines = (done.stderr + done.stdout).splitlines()
    return next((line for line in lines if "version" in line), "unknown").strip()
