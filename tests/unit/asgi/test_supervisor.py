"""The parent of fronts, which is interrupted at any moment."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.worker import eventually
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings, _listening
from ts_stateful.process.worker.fork_server import has_ended
from ts_stateful.serving.admin_socket import AdminSocket
from ts_stateful.serving.local import ServerFailed

COUNTER = Path(__file__).parents[3] / "examples" / "counter"


class SlowVariables(Mapping[str, str]):
    """Variables that are read when a front is about to start; that takes until the server is to stop."""

    def __init__(self) -> None:
        self.server: AsgiServer | None = None
        self.are_read = False

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        server = self.server
        if server is not None:
            self.are_read = True
            eventually(lambda: server._is_stopping)
        return iter(())


class Interrupted(AsgiServer):
    """A server whose start is interrupted while its first front starts."""

    def __init__(self, settings: AsgiServerSettings, variables: SlowVariables) -> None:
        super().__init__(settings)
        self._slow = variables

    def show_step(self) -> None:
        """Interrupt the wait, as Ctrl-C does."""
        if self._slow.are_read:
            raise KeyboardInterrupt


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    """A folder with a model that counts."""
    for path in (COUNTER / "model-config.yaml", COUNTER / "model" / "counter.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_front_that_starts_while_the_server_stops_is_ended(counter: Path) -> None:
    """It is not left running, with the server waiting for it for ever."""
    variables = SlowVariables()
    settings = AsgiServerSettings((str(counter),), ports=free_ports(), environ=variables)
    server = Interrupted(settings, variables)
    variables.server = server
    with pytest.raises(KeyboardInterrupt):
        server.start()
    front = server._front
    assert front is not None
    assert front.returncode is not None


class Hanging(AsgiServer):
    """A server whose fork server hangs in an import; its start is interrupted then."""

    pid = 0

    def show_step(self) -> None:
        """Interrupt the wait, as Ctrl-C does."""
        assert self._home is not None
        with contextlib.suppress(FileNotFoundError):
            self.pid = int((self._home / "tmp" / "hangs").read_text())
            raise KeyboardInterrupt


_HANG = """
import os, pathlib, signal, sys
if "ts_stateful.process.worker.fork_server" in sys.orig_argv:
    made = pathlib.Path(os.environ["TMPDIR"], "made")
    made.write_text(str(os.getpid()))
    made.rename(made.with_name("hangs"))
    signal.pause()
"""


def test_a_fork_server_that_hangs_ends_with_its_front(counter: Path) -> None:
    """As OpenBLAS hangs in its import where memory is short. All files were in the server's own folder."""
    (counter / "sitecustomize.py").write_text(_HANG)
    elsewhere = counter / "elsewhere"
    environ = {"PYTHONPATH": str(counter), "TS_STATEFUL_RUNTIME_DIR": str(elsewhere)}
    server = Hanging(AsgiServerSettings((str(counter),), ports=free_ports(), environ=environ))
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert server.pid
    assert has_ended(server.pid)
    assert not elsewhere.exists()


class Draining(AsgiServer):
    """A server whose front reports its time for turns, and ignores the signal to stop."""

    def _started_front(self, home: Path, admin: AdminSocket) -> subprocess.Popen[str]:
        self.started = RecordedFront(
            ["sh", "-c", "trap '' TERM; echo ready 300.0; exec sleep 600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.started.port = self.ports.http
        return self.started


class RecordedFront(subprocess.Popen[str]):
    """A front that never ends by itself; waiting for it takes no time."""

    limits: list[float]
    port: int
    is_open: bool  # while it was waited for last

    def wait(self, timeout: float | None = None) -> int:
        """Record the limit."""
        if timeout is None:
            return super().wait()
        with socket.socket() as client:
            self.is_open = client.connect_ex(("127.0.0.1", self.port)) == 0
        self.limits = [*getattr(self, "limits", []), timeout]
        raise subprocess.TimeoutExpired(self.args, timeout)


def test_a_front_has_the_longest_drain_of_its_models_to_stop(counter: Path) -> None:
    """Turns of five minutes are not cut off."""
    server = Draining(AsgiServerSettings((str(counter),), ports=free_ports()))
    server.start()
    server.stop()
    assert min(server.started.limits) > 300
    assert server.started.returncode is not None


def test_the_port_closes_with_the_front_of_a_server_that_stops(counter: Path) -> None:
    """This front has not taken it. A client that came later hung until the engines had ended, and was reset."""
    server = Draining(AsgiServerSettings((str(counter),), ports=free_ports()))
    server.start()
    server.stop()
    assert not server.started.is_open


class Overtaken(AsgiServer):
    """A server whose gRPC port another program takes just before the front starts."""

    def _started_front(self, home: Path, admin: AdminSocket) -> subprocess.Popen[str]:
        self.taker = socket.create_server(("127.0.0.1", self.ports.grpc))
        return super()._started_front(home, admin)


def test_a_front_whose_port_was_taken_exits(counter: Path) -> None:
    """With the reason, also where a listener that is left open would be an error of Python's."""
    strict = {"PYTHONWARNINGS": "error::ResourceWarning"}
    settings = AsgiServerSettings((str(counter),), ports=free_ports(), environ=strict)
    server = Overtaken(settings)
    with pytest.raises(ServerFailed, match=f"127.0.0.1:{server.ports.grpc}"):
        server.start()
    server.taker.close()


def test_the_reason_of_a_front_is_all_that_is_printed(counter: Path) -> None:
    """It writes it into a file, as an engine does."""
    with (counter / "model-config.yaml").open("a") as file:
        file.write("  auth: {mode: jwt, issuer: i, audience: a, jwks: missing.json}\n")
    server = AsgiServer(AsgiServerSettings((str(counter),), ports=free_ports()))
    with pytest.raises(ServerFailed, match=r"^model-config.*'missing.json' has no usable key"):
        server.start()


@pytest.mark.parametrize(
    ("host", "name"), [("::1", "[::1]"), ("::", "127.0.0.1"), ("localhost", "localhost")]
)
def test_the_urls_of_a_server_lead_to_it(counter: Path, host: str, name: str) -> None:
    """An IPv6 address has brackets in them, and all addresses are those of IPv4 too."""
    settings = AsgiServerSettings((str(counter),), host=host, metrics_host=host, ports=free_ports())
    server = Draining(settings)
    server.start()
    assert server.http_url == f"http://{name}:{server.ports.http}"
    assert server.metrics_url == f"http://{name}:{server.ports.metrics}"
    assert server.grpc_url == f"grpc://{name}:{server.ports.grpc}"
    for port in (server.ports.http, server.ports.metrics):
        socket.create_connection((name.strip("[]"), port), timeout=10).close()
    server.stop()


def test_all_addresses_are_those_of_ipv4_where_the_kernel_has_no_other() -> None:
    """As gRPC listens there; an image can then listen on all addresses everywhere."""
    with _listening("::", 0, has_ipv6=False) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=10).close()
