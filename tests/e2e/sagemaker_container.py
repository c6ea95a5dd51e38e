"""What happens in a container of SageMaker, without Docker: its entrypoint, in namespaces of its own.

The environment and the files are those of the Dockerfiles in deploy/sagemaker. SageMaker's own entrypoint writes into /etc,
takes any other TorchServe that it sees for its own, and has to stop as the first process of its container: hence a private view
of mounts and processes, for which `unshare` needs no root where the kernel lets users have namespaces.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from tests.e2e.server import ROOT, log_path
from tests.support.ports import free_ports
from ts_stateful.serving.ports import HOST, Ports
from ts_stateful.torchserve.java import java_environment

__all__ = ["FRONTS", "Container", "dockerfile", "image_environment", "missing"]

DEPLOY = ROOT / "deploy" / "sagemaker"
_START_S = 180.0
_STOP_S = 120.0  # on a busy machine; SageMaker waits for 30 s
_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
_NAMESPACES.append("--kill-child")  # whatever becomes of us
_PREPARE = """
mount -t tmpfs tmpfs "$PRIVATE"
mkdir "$PRIVATE/upper" "$PRIVATE/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$PRIVATE/upper,workdir=$PRIVATE/work" /etc
"""
# SageMaker mounts the model so that nobody can write to it.
_MOUNT = """
mount --bind "$MODEL" "$MODEL"
mount -o remount,bind,ro "$MODEL"
"""
# The Dockerfile puts a link in the place of the log's settings.
_TORCHSERVE = """
mount --bind "$LOG_CONFIG" "$TOOLKIT/etc/log4j2.xml"
exec python -m ts_stateful.torchserve.entrypoint serve
"""
_ASGI = (
    'exec "$SERVE" --grpc-port "$GRPC" --management-port "$MANAGEMENT" --metrics-port "$METRICS"'
)
FRONTS = ("torchserve", "asgi")


def dockerfile(front: str) -> Path:
    """The Dockerfile of the image with a front."""
    return DEPLOY / ("Dockerfile.asgi" if front == "asgi" else "Dockerfile")


def image_environment(front: str = "torchserve") -> dict[str, str]:
    """What the Dockerfile sets for whatever runs in the image."""
    text = dockerfile(front).read_text().replace("\\\n", " ")
    lines = re.findall(r"^ENV (.*)$", text, flags=re.MULTILINE)
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line))


def missing() -> str | None:
    """What this machine lacks for a container, if it does."""
    if importlib.util.find_spec("sagemaker_pytorch_serving_container") is None:
        return "needs the package sagemaker-pytorch-inference"
    if shutil.which("unshare") is None:
        return "needs the command unshare"
    with tempfile.TemporaryDirectory() as private:
        tried = subprocess.run(
            [*_NAMESPACES, "sh", "-ec", _PREPARE],
            env={**os.environ, "PRIVATE": private},
            capture_output=True,
            text=True,
            check=False,
        )
    return f"needs namespaces for users: {tried.stderr.strip()}" if tried.returncode else None


class Container:
    """The entrypoint on a folder that stands for /opt/ml, with a `model` in it. A context manager; stops in all cases."""

    def __init__(self, base: Path, front: str, **environ: str) -> None:
        self.url = ""
        self.front = front
        self.log = log_path(f"sagemaker_container_{front}")
        self._base = base
        self._environ = environ
        self._home = Path()
        self._unshare: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Container:
        self._home = Path(tempfile.mkdtemp(prefix="sm-"))  # short: sockets lie in it
        try:
            self._start()
            self._wait_healthy()
            self._wait_loaded()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        if self._unshare is not None:
            self._unshare.kill()
            self._unshare.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def stop(self) -> None:
        """Ends the first process, as Docker does, and returns when the container is gone with all that ran in it.

        Raises:
            subprocess.TimeoutExpired: it does not end.
        """
        if self._unshare is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for first in psutil.Process(self._unshare.pid).children():
                    first.send_signal(signal.SIGTERM)
            self._unshare.wait(timeout=_STOP_S)

    def log_text(self) -> str:
        """What CloudWatch would get."""
        return self.log.read_text()

    def _start(self) -> None:
        ports = free_ports()
        self.url = f"http://{HOST}:{ports.http}"
        settings = self._home / "config.properties"
        parts = [
            (ROOT / "config.properties").read_text(),
            (DEPLOY / "config.properties").read_text(),
        ]
        settings.write_text("".join([*parts, ports.as_properties()]))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        serve = _ASGI if self.front == "asgi" else _TORCHSERVE
        with self.log.open("wb") as log:
            self._unshare = subprocess.Popen(
                [*_NAMESPACES, "sh", "-ec", _PREPARE + _MOUNT + serve],
                cwd=self._home,
                env=self._variables(settings, ports),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _variables(self, settings: Path, ports: Ports) -> dict[str, str]:
        private, temporary = self._home / "private", self._home / "tmp"
        private.mkdir()
        temporary.mkdir()
        toolkit = importlib.util.find_spec("sagemaker_pytorch_serving_container")
        assert toolkit is not None
        assert toolkit.submodule_search_locations
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environ = {**os.environ, **image_environment(self.front), "PATH": scripts}
        for name in ("JAVA_HOME", "VIRTUAL_ENV"):  # the image's, which are not here
            environ.pop(name, None)
        if self.front == "torchserve":
            environ |= java_environment(environ)
        return environ | {
            "TS_CONFIG_FILE": str(settings),
            "SAGEMAKER_BASE_DIR": str(self._base),
            "TMPDIR": str(temporary),
            "TEMP": str(temporary),
            "PRIVATE": str(private),
            "MODEL": str(self._base / "model"),
            "LOG_CONFIG": str(ROOT / "log4j2.xml"),
            "TOOLKIT": toolkit.submodule_search_locations[0],
            "SERVE": str(DEPLOY / "serve.sh"),
            "SAGEMAKER_BIND_TO_PORT": str(ports.http),
            "GRPC": str(ports.grpc),
            "MANAGEMENT": str(ports.management),
            "METRICS": str(ports.metrics),
            **self._environ,
        }

    def _wait_healthy(self) -> None:
        assert self._unshare is not None
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ping", timeout=2).status_code == 200:  # as SageMaker does
                    return
            assert self._unshare.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.1)

    def _wait_loaded(self) -> None:
        """TorchServe is healthy before, and what it is asked waits. The other front is healthy when it is loaded."""
        body = {"type": "hello"}
        try:
            answer = httpx.post(f"{self.url}/invocations", json=body, timeout=_START_S)
        except httpx.TimeoutException:
            raise AssertionError(self.log_text()) from None
        assert answer.status_code == 200, answer.text
