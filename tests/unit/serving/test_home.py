"""Folders of servers, and what is left of those that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ts_stateful.serving.local import ServerFailed
from ts_stateful.serving.server import make_failed_folder, make_home, temporary_folder

CHILD = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own, with a short path."""
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def test_the_folder_of_a_killed_server_is_removed() -> None:
    """By the next one that starts; with all that was unpacked there."""
    left, lock = make_home()
    (left / "models").mkdir()
    (left / "models" / "weights").write_bytes(b"x")
    os.close(lock)  # as the end of its process does
    home, lock = make_home()
    assert not left.exists()
    assert home.is_dir()
    os.close(lock)


def test_the_folder_of_a_running_server_stays() -> None:
    """Also if only a process of it runs, such as a front that ends its turns."""
    first, lock = make_home()
    second, other = make_home()
    assert first.is_dir()
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock]
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        os.close(lock)
        os.close(make_home()[1])
        assert first.is_dir()
        child.communicate()
    os.close(make_home()[1])
    assert not first.exists()
    assert second.is_dir()
    os.close(other)


def test_logs_of_the_last_failed_starts_stay(temporary: Path) -> None:
    """Of five, and whatever another user may have put there."""
    others = temporary / "ts-stateful-failed-others"
    others.mkdir(mode=0o755)
    made = []
    for seconds in range(8):
        made.append(make_failed_folder())
        os.utime(made[-1], (seconds, seconds))
    assert [folder for folder in made if folder.is_dir()] == made[-5:]
    assert others.is_dir()


def test_without_a_temporary_folder_for_sockets_the_remedy_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on a read-only file system, nor where the path is too long for TorchServe's sockets."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / ("x" * 76)))
    with pytest.raises(ServerFailed, match="TMPDIR is too long"):
        make_home()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(ServerFailed, match="set TMPDIR"):
        make_home()


def test_processes_stay_in_the_folder_while_its_disk_is_full(temporary: Path) -> None:
    """Else a new front finds neither engines nor the default store. A disk on which no file can grow stands for a full one."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "from ts_stateful.process.private import user_folder; print(user_folder())"
    )
    environ = {**os.environ, **temporary_folder(temporary)}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert Path(found.stdout.strip()) == temporary / f"ts-stateful-{os.getuid()}"


def test_nothing_else_is_removed(temporary: Path) -> None:
    """Neither a folder of another program, nor of another user, nor what a link names."""
    other, elsewhere, opened = (
        temporary / "ts-other",
        temporary / "elsewhere",
        temporary / "ts-open",
    )
    for folder in (other, elsewhere, opened):
        folder.mkdir(mode=0o700)
    for folder in (elsewhere, opened):
        (folder / "server.lock").touch()
    opened.chmod(0o777)
    (temporary / "ts-link").symlink_to(elsewhere)
    os.close(make_home()[1])
    assert other.is_dir()
    assert opened.is_dir()
    assert elsewhere.is_dir()
