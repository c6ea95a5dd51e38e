"""What the tests of engine processes share: a packed model, a process that stands for TorchServe, and workers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest


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


@pytest.fixture
def start(
    model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path
) -> Iterator[Callable[..., Any]]:
    """Starts workers, and lets go of their engines in the end. Takes settings of `handler`, and `model_dir`."""
    from tests.support.worker import Worker  # noqa: PLC0415 - as above

    with ExitStack() as stack:

        def start(*, model_dir: Path = model_dir, **settings: Any) -> Worker:
            worker = Worker(model_dir, frontend.pid, **settings)
            stack.callback(worker.dispatcher.close)
            worker.dispatcher.start()
            return worker

        yield start
