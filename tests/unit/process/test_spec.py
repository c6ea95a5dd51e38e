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
