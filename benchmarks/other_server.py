"""Another server, started by its command and asked at `/health`."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ts_stateful.serving.ports import HOST

__all__ = ["OtherServer"]

ServerT = TypeVar("ServerT", bound="OtherServer")

_STOP_S = 10.0


class OtherServer:
    """A context manager; `port` answers within it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        start_s: float,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self._name, self._command, self._environ = name, command, environ
        self._log, self._start_s = log, start_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self: ServerT) -> ServerT:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
            )
        deadline = time.monotonic() + self._start_s
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                tail = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._name} did not start:\n{tail}")
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
