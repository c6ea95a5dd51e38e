"""What several tests share: engines and their workers, clients and the servers that they talk to, web servers with images."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.fake_client import FakeTime, connected
from tests.support.fake_servers import grpc_server
from tests.support.fake_sessions import FakeSessions
from tests.support.web import MakeFetcher, Site
from ts_stateful.cli import main
from ts_stateful.client import Server
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.fetch import Fetcher
from ts_stateful.process.worker.fork_server import ForkServer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive with a small model that sees."""
    from tests.support.tiny import llava, save  # noqa: PLC0415 - seconds; most tests do without

    folder = tmp_path_factory.mktemp("archive")
    save(llava(), folder / "model")
    return folder


@pytest.fixture
def frontend() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for TorchServe: the engines end with it."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private place for the engines' files, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TS_STATEFUL_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One for all workers, so that what engines need is imported once."""
    with closing(ForkServer()) as server:
        yield server


@pytest.fixture
def start(
    model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path, fork_server: ForkServer
) -> Iterator[Callable[..., Any]]:
    """Starts workers, and lets go of their engines in the end. Takes what `Worker` does."""
    from tests.support.worker import Worker  # noqa: PLC0415 - as above

    with ExitStack() as stack:

        def start(*, model_dir: Path = model_dir, **settings: Any) -> Worker:
            worker = Worker(model_dir, frontend.pid, **{"fork_server": fork_server, **settings})
            stack.callback(worker.dispatcher.close)
            worker.dispatcher.start()
            return worker

        yield start


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server on loopback."""
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def make_fetcher() -> Iterator[MakeFetcher]:
    """Makes fetchers; settings are those of MediaConfig, by default one for the local server."""
    fetchers: list[Fetcher] = []

    def make(private: bool = True, seams: dict[str, Any] | None = None, **settings: Any) -> Fetcher:
        schemes: tuple[Literal["https", "http", "data"], ...] = ("https", "http", "data")
        config = MediaConfig(
            **{
                "allowed_schemes": schemes,
                "allow_private_addresses": private,
                "allowed_ports": tuple(range(1, 65536)),
                **settings,
            }
        )
        fetchers.append(Fetcher(config, **(seams or {})))
        return fetchers[-1]

    yield make
    for fetcher in fetchers:
        fetcher.close()


@pytest.fixture
def fake() -> FakeSessions:
    """The sessions behind a server of the continuous profile."""
    return FakeSessions()


@pytest.fixture
def url(fake: FakeSessions) -> Iterator[str]:
    """A gRPC server with those sessions."""
    with grpc_server(fake) as port:
        yield f"grpc://127.0.0.1:{port}"


@pytest.fixture
def run(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command against the server, with these lines on standard input."""

    def run(*arguments: str, lines: str = "") -> int:
        monkeypatch.setenv("TS_STATEFUL_URL", url)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        return main(arguments)

    return run


@pytest.fixture
def time() -> FakeTime:
    """A clock of the test's own."""
    return FakeTime()


@pytest.fixture
def server(fake: FakeSessions, time: FakeTime) -> Iterator[Server]:
    """A connection to the fake server."""
    with connected(fake, time) as server:
        yield server
