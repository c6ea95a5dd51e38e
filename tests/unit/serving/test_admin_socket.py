"""The socket of the administration: its place, its mode, and the search for it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ts_stateful.cli import main
from ts_stateful.serving.admin_socket import AdminSocket, newest_admin_socket
from ts_stateful.serving.local import ServerFailed


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder, which is also that of this user's servers."""
    monkeypatch.delenv("TS_STATEFUL_ADMIN", raising=False)
    with tempfile.TemporaryDirectory(prefix="ts-") as made:
        monkeypatch.setenv("TS_STATEFUL_RUNTIME_DIR", made)
        yield Path(made)


def test_only_this_user_can_open_it(home: Path) -> None:
    """The socket and the folder with the links; both are removed at the end."""
    admin = AdminSocket.open(None, None, home)
    assert admin.path == home / "admin.sock"
    assert stat.S_IMODE(admin.path.stat().st_mode) == 0o600
    (folder,) = home.glob("ts-stateful-*/admin")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert newest_admin_socket() == admin.path
    admin.close()
    assert not admin.path.exists()
    assert list(folder.iterdir()) == []
    assert newest_admin_socket() is None


def test_the_newest_server_that_runs_is_found(home: Path) -> None:
    """Links of servers that were killed are removed."""
    admins = []
    for index, name in enumerate(("first", "second", "killed")):
        (home / name).mkdir()
        admins.append(AdminSocket.open(None, None, home / name))
        (link,) = home.glob(f"ts-stateful-*/admin/{name}.sock")
        os.utime(link, (index, index), follow_symlinks=False)
    first, second, killed = admins
    killed.listener.close()
    assert newest_admin_socket() == second.path
    assert not list(home.glob("ts-stateful-*/admin/killed.sock"))
    second.close()
    assert newest_admin_socket() == first.path
    first.close()


def test_it_is_in_the_state_folder_unless_that_is_in_use(home: Path) -> None:
    """Two servers may share the folder; one that was killed leaves no obstacle."""
    state = home / "state"
    with_state = AdminSocket.open(None, state, home)
    assert with_state.path == state / "admin.sock"
    (home / "other").mkdir()
    other = AdminSocket.open(None, state, home / "other")
    assert other.path == home / "other" / "admin.sock"
    other.close()
    with_state.listener.close()
    again = AdminSocket.open(None, state, home)
    assert again.path == state / "admin.sock"
    again.close()


def test_a_chosen_path_is_kept_or_refused(home: Path) -> None:
    """The error has the path and the remedy."""
    chosen = AdminSocket.open(home / "my.sock", home / "state", home)
    assert chosen.path == home / "my.sock"
    file = home / "notes.txt"
    file.write_text("mine")
    for path, reason in (
        (home / "my.sock", "in use by another server"),
        (file, "is a file, not a socket"),
        (home / ("x" * 100), "more than 100 bytes"),
        (file / "admin.sock", "notes.txt"),
    ):
        with pytest.raises(ServerFailed, match=reason) as failed:
            AdminSocket.open(path, None, home)
        assert "--admin-socket" in str(failed.value)
    assert file.read_text() == "mine"
    chosen.close()


def test_the_folder_of_another_program_is_not_used(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the server nor the command fails without a remedy."""
    (home / f"ts-stateful-{os.getuid()}").symlink_to("/")
    with pytest.raises(ServerFailed, match="TS_STATEFUL_RUNTIME_DIR"):
        AdminSocket.open(home / "admin.sock", None, home)
    assert not (home / "admin.sock").exists()
    assert main(["sessions"]) == 1
    assert "name the server (--admin)" in capsys.readouterr().err
