"""The pipe by which TorchServe says that a request waits."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ts_stateful.frontend.delivery.torchserve_wire import hear

_LONG_S = 60.0


@pytest.mark.parametrize("made", [False, True])
def test_bytes_in_the_pipe_ring(tmp_path: Path, made: bool) -> None:
    """Also in one that an earlier worker made."""
    pipe = tmp_path / "chat.bell"
    if made:
        os.mkfifo(pipe)
    rung = threading.Event()
    assert hear("chat", rung.set, {"TS_STATEFUL_BELLS": str(tmp_path)})
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    for _ in range(2):
        with pipe.open("wb") as line:
            line.write(b"x")
        assert rung.wait(_LONG_S)
        rung.clear()


def test_a_pipe_is_closed_to_others(tmp_path: Path) -> None:
    """They could make the worker return from all its calls at once."""
    assert hear("chat", lambda: None, {"TS_STATEFUL_BELLS": str(tmp_path)})
    assert stat.S_IMODE((tmp_path / "chat.bell").stat().st_mode) == 0o600


def test_without_a_pipe_nobody_rings(tmp_path: Path) -> None:
    """With a plain TorchServe, and where something else is in the place of the pipe."""
    (tmp_path / "chat.bell").write_text("mine")
    for environ in (
        {},
        {"TS_STATEFUL_BELLS": str(tmp_path)},
        {"TS_STATEFUL_BELLS": str(tmp_path / "none")},
    ):
        assert not hear("chat", lambda: None, environ)
    assert (tmp_path / "chat.bell").read_text() == "mine"
