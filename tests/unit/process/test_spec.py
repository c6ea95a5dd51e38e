"""The runtime folder of an engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ts_stateful.process.spec import runtime_folder


def test_a_folder_of_another_user_is_refused(runtime: Path) -> None:
    """A link in its place could lead to any folder."""
    (runtime / f"ts-stateful-{os.getuid()}").symlink_to(runtime)
    with pytest.raises(RuntimeError, match="not a folder of this user"):
        runtime_folder(1, "x")


def test_a_path_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the variable that moves it."""
    monkeypatch.setenv("TS_STATEFUL_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(RuntimeError, match="TS_STATEFUL_RUNTIME_DIR"):
        runtime_folder(1, "x")
