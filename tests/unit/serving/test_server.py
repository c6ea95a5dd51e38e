"""A server while it starts."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from ts_stateful.process.load_progress import LoadProgress
from ts_stateful.serving.server import LocalServer, ServerSettings


class Starting(LocalServer):
    """A server that starts in a folder, and shows its steps on a terminal."""

    def __init__(self, home: Path, state_dir: Path | None = None) -> None:
        self.terminal = io.StringIO()
        self.terminal.isatty = lambda: True  # type: ignore[method-assign]
        super().__init__(ServerSettings(state_dir=state_dir), self.terminal)
        self._home = home

    def start(self) -> None: ...

    def wait(self) -> None: ...

    def stop(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {}

    def is_ready(self) -> bool:
        return False


def refusing(listed: Callable[..., Any]) -> Callable[..., Any]:
    """Return what lists a folder, unless Java has moved it."""

    def scandir(path: Any) -> Any:
        if "models" in str(path):
            raise FileNotFoundError(path)
        return listed(path)

    return scandir


def test_the_step_of_an_engine_is_shown(tmp_path: Path) -> None:
    """As soon as it has begun one."""
    folder = tmp_path / "tmp" / "ts-stateful-0" / "model"
    folder.mkdir(parents=True)
    server = Starting(tmp_path)
    server.show_step()
    assert server.terminal.getvalue().endswith("starting the server")
    LoadProgress(folder / "engine-0.loading", FakeClock()).begin("loading the weights", 2_000_000)
    server.show_step()
    assert "loading the weights [--------------------] 0.0 of 2.0 MB" in server.terminal.getvalue()


def test_folders_of_archives_are_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java moves them while it unpacks, so they may be gone when they are listed."""
    (tmp_path / "tmp" / "models1.download" / "ts_stateful").mkdir(parents=True)
    folders = [tmp_path / "tmp" / "ts-stateful-0" / name for name in ("7-first", "7-second")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "engine-0.log").write_text("the last line")
    (folders[0] / "engine-0.reason").write_text("the model is too large")
    server = Starting(tmp_path, tmp_path / "state")
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    server.show_step()
    assert server.terminal.getvalue().endswith("starting the server")
    assert "the last line" in server.log_tail()
    failed = server.failure("it exited")
    assert str(failed).startswith("the model is too large")
    for name in ("first-engine-0.log", "second-engine-0.log"):  # of two models
        assert (tmp_path / "state" / "logs" / name).read_text() == "the last line"
