"""A TorchServe process with a private folder for its working directory, temporary files and properties.

Needs neither torch nor TorchServe's Python API: it runs the stock `torchserve` command, by `launch`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ts_stateful.client.management import Management
from ts_stateful.process.drain import drain, end_engines
from ts_stateful.serving.local import ServerFailed, get_json
from ts_stateful.serving.ports import HOST
from ts_stateful.serving.server import LocalServer, ServerSettings
from ts_stateful.torchserve.guard import Guard
from ts_stateful.torchserve.java import java_environment
from ts_stateful.torchserve.mended_classes import MendFailed, write_mended
from ts_stateful.torchserve.properties import KEY_FILE, read_key, read_properties

__all__ = ["TorchServe", "TorchServeSettings", "settings_file"]

_POLL_S = 0.1
_STOP_S = 20.0  # after SIGTERM; then SIGKILL
_ENGINES_STOP_S = 60.0  # longer than they need to finish their requests; then SIGKILL
# Lines that name no failure: of the launcher; of Java's logging; on machines without a GPU; and of gRPC, for clients that ask
# which profile this is or that disconnect.
_HARMLESS = (
    "Warning: TorchServe is using non-default JVM parameters: ",
    "WARNING: sun.reflect.Reflection.getCallerClass is not supported.",
    "nvidia-smi not available or failed: ",
    ":Exception while executing runnable io.grpc.internal.ServerImpl$JumpToApplicationThread",
    ":Transport failed",
)
# Settings with paths, which are relative to the working directory: TorchServe gets another one.
_FILES = ("metrics_config", "private_key_file", "certificate_file", "keystore")
_LOAD_FAILED = ("Load model failed", "Failed to load model")
_NO_SPACE = "java.io.IOException: No space left on device"
_REASON = re.compile(  # not in JSON
    r"[^{].*(?:Failed to load model \S+, exception|Backend worker process died\.) (.+)"
)


def settings_file(name: str) -> Path:
    """Return a file of settings in the working directory, else the one in this package."""
    here = Path(name)
    return here if here.is_file() else Path(__file__).with_name(name)


@dataclass(frozen=True)
class TorchServeSettings(ServerSettings):
    """The model and the settings of one TorchServe."""

    archive: Path  # a .mar file, or the folder of a `no-archive`
    config: Path  # a config.properties, whose addresses are replaced by `ports` on loopback
    log_config: Path  # a log4j2.xml
    watch: bool = True  # keep gRPC calls from ending workers, and replace those that are lost


class TorchServe(LocalServer):
    """One TorchServe in its own process group."""

    def __init__(self, settings: TorchServeSettings, *, echo: TextIO | None = None) -> None:
        super().__init__(settings, echo)
        self._settings = settings
        self._guard: Guard | None = None
        self._load_failed = False
        self._reason = ""
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None

    def start(self) -> None:
        """Start TorchServe and return when the model answers.

        Raises:
            ServerFailed: a port is in use, TorchServe exited or took longer than `start_timeout_s`, or the model did not load.
            JavaMissing: there is no Java runtime.
        """
        assert self._process is None, "started twice"
        taken = self.ports.taken()
        if taken:  # the other server might answer in the place of this one
            raise ServerFailed(
                f"in use on {HOST}: port {', '.join(map(str, taken))};"
                " choose other ports, or stop the server that has them"
            )
        try:
            self._spawn()
            self._wait_ready()
            self._log.status("")
            if self._home is not None and (self._home / KEY_FILE).exists():
                self._log.line(f"TorchServe's keys are in {self._home / KEY_FILE}")
            if self._settings.watch:
                self._watch()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Block until TorchServe exits by itself; interrupt it with KeyboardInterrupt."""
        assert self._process is not None, "not started"
        self._process.wait()

    def stop(self) -> None:
        """Drain the engines and stop all processes; idempotent, at any time."""
        process, self._process = self._process, None
        if self._guard is not None:
            self._guard.stop()
        try:
            if process is not None:
                self._end(process)
        finally:
            if self._guard is not None:
                self._guard.join(timeout_s=5)
                self._guard = None
            if self._pump is not None:
                self._pump.join(timeout=5)
                self._pump = None
            self.remove_home()

    def describe(self) -> dict[str, Any]:
        """See `LocalServer`."""
        answer = get_json(self.ports.management, f"/models/{self.name}", self._key("management"))
        if not isinstance(answer, list) or len(answer) != 1 or not isinstance(answer[0], dict):
            raise ValueError(f"not a description of one model: {answer}")
        return answer[0]

    def is_ready(self) -> bool:
        """Return True if the server is healthy and every worker of the model is ready."""
        try:
            health = get_json(self.ports.http, "/ping", self._key("inference"))
            workers = self.describe().get("workers", [])
        except (OSError, ValueError, http.client.HTTPException):
            return False
        healthy = isinstance(health, dict) and health.get("status") == "Healthy"
        return healthy and bool(workers) and all(w.get("status") == "READY" for w in workers)

    def _spawn(self) -> None:
        home = self.make_home()
        properties = home / "config.properties"
        settings = self._settings
        archive = settings.archive.resolve()
        given = read_properties(settings.config)
        folder = json.dumps(str(Path.cwd()))[1:-1]  # Java reads Latin-1, with escapes as in JSON
        files = (f"{name}={Path(folder, given[name])}\n" for name in _FILES if given.get(name))
        lines = f"{''.join(files)}{self.ports.as_properties()}"
        # The base file may lack a final newline; later settings win.
        properties.write_text(f"{settings.config.read_text()}\n{lines}")
        variables = self.variables(home)
        if settings.watch:
            try:
                variables |= write_mended(home)
            except MendFailed as error:
                self._log.write(f"warning: a client can stop a worker: {error}\n")
        command = [sys.executable, "-m", "ts_stateful.torchserve.launch"]
        command += ["--start", "--foreground", "--no-config-snapshots"]
        command += ["--model-store", str(archive.parent)]
        command += ["--models", f"{self.name}={archive.name}"]
        command += ["--ts-config", str(properties)]
        command += ["--log-config", str(settings.log_config.resolve())]
        self._process = subprocess.Popen(
            command,
            cwd=home,
            pass_fds=[self._lock],
            env=variables,
            stdin=subprocess.PIPE,  # until this process ends
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._copy_log, args=(self._process,), daemon=True)
        self._pump.start()

    def variables(self, home: Path) -> dict[str, str]:
        """Return the environment of TorchServe, whose Java gets the temporary folder by another name."""
        environ = super().variables(home)
        environ |= {**java_environment(environ), "TEMP": environ["TMPDIR"]}
        lines = self.ports.as_properties().splitlines()
        for name in ("config_file", *(line.partition("=")[0] for line in lines)):
            environ.pop(f"TS_{name.upper()}", None)  # takes precedence over the option, or the file
        return environ

    def _copy_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._keep_reason(line)
                self._load_failed |= any(text in line for text in _LOAD_FAILED)
                if not any(text in line for text in _HARMLESS):
                    self._log.write(line)

    def _key(self, kind: str) -> str | None:
        return None if self._home is None else read_key(self._home, kind)

    def _watch(self) -> None:
        management = Management(self.management_url, token=lambda: self._key("management"))
        self._guard = Guard(management, self._log)
        self._guard.start()

    def _wait_ready(self) -> None:
        assert self._process is not None
        timeout_s = self._settings.start_timeout_s
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            self.show_step()
            if self._process.poll() is not None:
                raise self._failure(f"TorchServe exited with status {self._process.returncode}")
            if self._load_failed:
                raise self._failure(f"cannot load the model {self.name}")
            if time.monotonic() > deadline:
                raise self._failure(f"no answer within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> ServerFailed:
        time.sleep(0.5)  # the rest of a traceback may still arrive
        return self.failure(what, self._reason)

    def _keep_reason(self, line: str) -> None:
        """Keep the reason of a worker's line, or of Java's error while it unpacks the model."""
        if found := _REASON.match(line):
            self._reason = found[1]
        elif line.startswith(_NO_SPACE) and self._home is not None:
            self._reason = f"the model is unpacked in {self._home.parent}, which is full; set TMPDIR to a larger folder"

    def _end(self, process: subprocess.Popen[str]) -> None:
        try:
            self._terminate(process)
        finally:
            # The rest of the group: the command, Java, workers. Engines have their own sessions.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
            end_engines(self.engines(), _ENGINES_STOP_S)

    def _terminate(self, process: subprocess.Popen[str]) -> None:
        """Stop Java itself; the command that started it then exits, too."""
        assert self._home is not None
        try:
            java = int((self._home / "tmp" / ".model_server.pid").read_text())
            drain(self.engines(), _ENGINES_STOP_S)
            os.kill(java, signal.SIGTERM)
            process.wait(timeout=_STOP_S)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            pass  # not started yet, already exited, or hung; the group gets SIGKILL
