"""The server without TorchServe: a front process, started again if it dies, and the engines.

Needs neither torch nor the front's packages. Engines belong to this process, so they outlive a front.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ts_stateful.asgi.settings import ADMIN_TOKEN, FrontSettings, Tls
from ts_stateful.asgi.source import open_sources
from ts_stateful.config.schema import ConfigError
from ts_stateful.process.drain import drain, end_engines
from ts_stateful.serving.admin_socket import AdminSocket
from ts_stateful.serving.local import ServerFailed, get_json
from ts_stateful.serving.ports import HOST, in_url
from ts_stateful.serving.server import LocalServer, ServerSettings

__all__ = ["AsgiServer", "AsgiServerSettings"]

_STOP_S = 70.0  # for a front's end, beside the `drainSec` of its models
_ENGINES_STOP_S = 60.0
_SHORT_LIFE_S = 10.0  # after which the next front starts at once
_PAUSE_S = 1.0
_POLL_S = 0.05
_HAS_IPV6 = socket.has_dualstack_ipv6()


@dataclass(frozen=True)
class AsgiServerSettings(ServerSettings):
    """The models and the settings of one server."""

    models: tuple[str, ...]  # archives, folders or hub ids
    config: Path | None = None  # of the first model; the archive's by default
    host: str = HOST
    metrics_host: str = HOST
    max_body_bytes: int = 28_000_000
    tls: Tls | None = None
    admin_socket: Path | None = None  # by default in `state_dir`, or a temporary one
    admin_port: int | None = None  # on loopback, with the token of `ADMIN_TOKEN`; 0 is any free one


class AsgiServer(LocalServer):
    """A server without TorchServe."""

    def __init__(self, settings: AsgiServerSettings, *, echo: TextIO | None = None) -> None:
        super().__init__(settings, echo)
        self._settings = settings
        self._host, self._metrics_host = _reached(settings.host), _reached(settings.metrics_host)
        self._secure = "" if settings.tls is None else "s"
        self._sockets: list[socket.socket] = []
        self._admin: AdminSocket | None = None
        self._front: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._is_stopping = False
        self._drain_s = 0.0  # of the front that is ready
        self._starting = threading.Lock()  # held while a front starts: `stop` must not miss it

    @property
    def admin_urls(self) -> list[str]:
        """The URLs of the administration."""
        if self._admin is None:
            return []
        urls = [f"unix://{self._admin.path}"]
        if self._settings.admin_port is not None:
            urls.append(f"http://{HOST}:{self._sockets[-1].getsockname()[1]}")
        return urls

    def start(self) -> None:
        """See `LocalServer`.

        Raises:
            ConfigError: a model or its configuration cannot be read, or the port of administration has no token.
        """
        assert self._thread is None, "started twice"
        home = self.make_home()
        try:
            self._prepare(home)
            self._thread = threading.Thread(target=self._supervise, name="front", daemon=True)
            self._thread.start()
            self._wait_ready()
            self._log.status("")
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """See `LocalServer`."""
        # In steps: the kernel may give the signal to another thread (in a paused container), which does not wake this one.
        while not self._ended.wait(_PAUSE_S):
            pass

    def stop(self) -> None:
        """Finish the running turns and stop all processes; idempotent, at any time."""
        self._is_stopping = True
        with self._starting:
            front = self._front
        while self._sockets:  # the ports refuse clients as soon as the front takes none
            self._sockets.pop().close()
        if front is not None and front.poll() is None:
            front.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                front.wait(self._drain_s + _STOP_S)
            front.kill()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        engines = self.engines()
        drain(engines, _ENGINES_STOP_S)
        end_engines(engines, _ENGINES_STOP_S)
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        self.remove_home()

    def describe(self) -> dict[str, Any]:
        """See `LocalServer`; the worker is the front."""
        (description,) = get_json(self.ports.management, f"/models/{self.name}")
        pid = self._front.pid if self._front is not None else -1
        return {
            **description,
            "workers": [{"id": "0", "pid": pid, "status": description["status"]}],
        }

    def is_ready(self) -> bool:
        """Return True if every model answers."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            return bool(get_json(self.ports.management, "/readyz")["status"] == "ready")
        return False

    def _prepare(self, home: Path) -> None:
        """Open the models, and the ports, which stay open while a front starts again."""
        settings = self._settings
        if settings.admin_port is not None and not self.variables(home).get(ADMIN_TOKEN):
            raise ConfigError(f"--admin-port needs a token, in the variable {ADMIN_TOKEN}")
        sources = open_sources(
            settings.models, home / "models", name=settings.name, config=settings.config
        )
        self.name = sources[0].name
        for host, port in (
            (settings.host, self.ports.http),
            (HOST, self.ports.management),
            (settings.metrics_host, self.ports.metrics),
        ):
            self._sockets.append(_listening(host, port))
        probe = _listening(settings.host, self.ports.grpc)
        probe.close()
        http, management, metrics = (one.fileno() for one in self._sockets)
        if settings.admin_port is not None:
            self._sockets.append(_listening(HOST, settings.admin_port))
        self._admin = AdminSocket.open(settings.admin_socket, settings.state_dir, home)
        FrontSettings(
            models=sources,
            http_fd=http,
            management_fd=management,
            metrics_fd=metrics,
            admin_fd=self._admin.listener.fileno(),
            admin_port_fd=None if settings.admin_port is None else self._sockets[-1].fileno(),
            host=settings.host,
            grpc_port=self.ports.grpc,
            max_body_bytes=settings.max_body_bytes,
            tls=settings.tls,
        ).save(home / "front.json")

    def _supervise(self) -> None:
        """Run one front after the other."""
        try:
            while not self._is_stopping:
                began = time.monotonic()
                self._run_front()
                if self._is_stopping or not self._ready.is_set():
                    return
                assert self._front is not None
                self._log.line(
                    f"the front exited with status {self._front.returncode}; starting another"
                )
                if time.monotonic() - began < _SHORT_LIFE_S:
                    time.sleep(_PAUSE_S)
        finally:
            self._ended.set()

    def _run_front(self) -> None:
        """Start a front and return when it has exited."""
        assert self._home is not None
        assert self._admin is not None
        with self._starting:
            if self._is_stopping:
                return
            self._front = self._started_front(self._home, self._admin)
        log = threading.Thread(target=self._copy_log, args=(self._front.stderr,), daemon=True)
        log.start()
        assert self._front.stdout is not None
        with self._front.stdout as lines:
            for word, _, drain_s in (line.partition(" ") for line in lines):
                if word == "ready":
                    self._drain_s = float(drain_s)
                    self._ready.set()
        self._front.wait()
        log.join(timeout=1)  # an engine may hold its end of the pipe

    def _started_front(self, home: Path, admin: AdminSocket) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ts_stateful.asgi.process", str(home / "front.json")],
            env=self.variables(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            pass_fds=[self._lock, *(one.fileno() for one in (*self._sockets, admin.listener))],
            start_new_session=True,
        )

    def _copy_log(self, lines: TextIO) -> None:
        with lines:
            for line in lines:
                self._log.write(line)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._settings.start_timeout_s
        while not self._ready.wait(_POLL_S):
            self.show_step()
            if self._ended.is_set():
                raise self.failure("cannot start")
            if time.monotonic() > deadline:
                raise self.failure(f"no answer within {self._settings.start_timeout_s:g} s")


def _reached(host: str) -> str:
    """Return the name or address in a URL by which this machine reaches what listens on a host."""
    return HOST if host in ("0.0.0.0", "::") else in_url(host)


def _listening(host: str, port: int, *, has_ipv6: bool = _HAS_IPV6) -> socket.socket:
    """Return a socket that listens. Raises `ServerFailed` if the port is in use."""
    if host == "::" and not has_ipv6:  # as gRPC does
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, port), family=family, backlog=2048, dualstack_ipv6=host == "::"
        )
    except OSError as error:
        # socket.gaierror has numbers of its own, which are negative.
        wrong_host = error.errno in (errno.EADDRNOTAVAIL, None) or error.errno < 0
        remedy = "an address of this machine (--host)" if wrong_host else "another port"
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ServerFailed(f"port {port} on {host}: {reason}; choose {remedy}") from None
