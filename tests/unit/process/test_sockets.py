"""Unix sockets refuse processes of other users."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ts_stateful.process.sockets import accept, connect, listen

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
# What is imported before stays usable, even if the other user cannot read it.
BECOME = f"os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
CALLER = """
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
sys.stdout.write(repr(connection.recv(1)))
"""
LISTENER = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter and write, as no folder of an engine is."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


def start(program: str, path: Path) -> subprocess.Popen[str]:
    """Run a program as another user."""
    imports = (
        f"import os, socket, sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from ts_stateful.process.sockets import accept, listen\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", imports + BECOME + program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("length", [1, 200])
def test_processes_of_one_user_connect(folder: Path, length: int) -> None:
    """Through a file that is closed to others, in place of one that was left there, however long its path is."""
    path = folder / ("x" * length) / "sock"
    path.parent.mkdir()
    path.write_text("left")
    with listen(path) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ours = connect(path)
        theirs = accept(listener)
        assert ours is not None
        assert theirs is not None
        with ours, theirs:
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"


def test_without_a_process_there_is_no_connection(folder: Path) -> None:
    """Neither is there an error."""
    assert connect(folder / "sock") is None


@as_root
def test_a_process_of_another_user_is_not_served(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is closed, even if the file lets it connect."""
    with listen(folder / "sock") as listener:
        (folder / "sock").chmod(0o666)
        caller = start(CALLER, folder / "sock")
        assert accept(listener) is None
        assert caller.communicate()[0] == "b''"
    assert str(STRANGER) in caplog.text


@as_root
def test_a_socket_of_another_user_is_removed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A request is never sent there."""
    planted = start(LISTENER, folder / "sock")
    assert planted.stdout is not None
    assert planted.stdout.readline() == "up\n"
    assert connect(folder / "sock") is None
    assert not (folder / "sock").exists()
    assert str(STRANGER) in caplog.text
    planted.communicate()


@as_root
def test_processes_of_root_are_served(folder: Path) -> None:
    """Root could read the process's memory anyway."""
    program = """
listener = listen(Path(sys.argv[1]))
print("up", flush=True)
print(accept(listener) is not None, flush=True)
"""
    path = folder / "sock"
    served = start(program, path)
    assert served.stdout is not None
    assert served.stdout.readline() == "up\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        assert served.communicate()[0] == "True\n"
