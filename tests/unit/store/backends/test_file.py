"""Values as files."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_client import FakeTime
from tests.support.store_behaviour import StoreBehaviour
from tests.support.store_processes import VALUE
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable

_PROCESS = [sys.executable, "-m", "tests.support.store_processes"]
_ENTRIES = [f"sessions/a/{position:08d}" for position in range(4)]


class TestFileStore(StoreBehaviour):
    """What every store does."""

    @pytest.fixture(params=[False, True], ids=["quick", "fsync"])
    def store(self, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
        """An empty one."""
        return FileStore(tmp_path / "store", fsync=request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store goes."""
    return tmp_path / "store"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _killed(repository: Path, folder: Path, operation: str) -> list[FileStore]:
    """The stores in which a process was killed before each step of the operation, and the one where it was not."""
    folder.mkdir()
    done = subprocess.run(
        [*_PROCESS, "kill", str(folder), operation],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": "handlers"},
        capture_output=True,
        text=True,
        check=True,
    )
    count = int(done.stdout)
    assert count >= 2, "the steps were not seen"
    return [FileStore(folder / str(number)) for number in range(count + 1)]


def test_a_writer_that_is_killed_leaves_a_whole_value_or_none(
    repository: Path, folder: Path
) -> None:
    """Whichever step it dies before; what it leaves does not last, and the key can be created where it has no value."""
    stores = _killed(repository, folder, "create")
    there = [store.get(_ENTRIES[0]) for store in stores]
    assert set(there) == {None, VALUE}
    assert there == sorted(there, key=bool)
    for store, value in zip(stores, there, strict=True):
        assert store.create(_ENTRIES[0], VALUE) == (value is None)
        FileStore(store.folder, clock=lambda: 1e11)
        assert [path.name for path in _files(store.folder)] == ["00000000@"]


def test_a_life_that_is_prolonged_by_a_killed_process_is_the_old_or_the_new_one(
    repository: Path, folder: Path
) -> None:
    """The value stays as it is."""
    lives = []
    for store in _killed(repository, folder, "prolong"):
        assert store.get(_ENTRIES[0]) == VALUE
        FileStore(store.folder, clock=lambda: 1e11).sweep()
        lives.append(len(store.list("sessions")))
    assert set(lives) == {0, 1}
    assert lives == sorted(lives)


def test_a_removal_that_is_interrupted_was_made_or_not(repository: Path, folder: Path) -> None:
    """A session is never half there; what is left of it does not last."""
    stores = _killed(repository, folder, "delete")
    assert {len(store.list("sessions/a")) for store in stores} == {0, len(_ENTRIES)}
    for store in stores:
        store.delete("sessions/a")
        FileStore(store.folder, clock=lambda: 1e11)
        assert not _files(store.folder)


def test_a_sweep_that_is_interrupted_leaves_the_beginning_of_a_session(
    repository: Path, folder: Path
) -> None:
    """The last entries go first."""
    left = [list(store.list("sessions/a")) for store in _killed(repository, folder, "sweep")]
    assert left == [_ENTRIES[: len(keys)] for keys in left]
    assert left[-1] == []


def test_of_two_processes_one_creates(repository: Path, folder: Path) -> None:
    """Two processes create the same keys as fast as they can: each key has one winner, whose value stays."""
    num_keys = 300
    processes = [
        subprocess.Popen(
            [*_PROCESS, "race", str(folder), str(num_keys)],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": "handlers"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [process.communicate()[0].strip() for process in processes]
    store = FileStore(folder)
    for n in range(num_keys):
        assert sorted(digits[n] for digits in won) == ["0", "1"]
        winner = processes[[digits[n] for digits in won].index("1")]
        assert store.get(f"race/{n}") == b"%d" % winner.pid


def test_nobody_else_can_read(folder: Path) -> None:
    """Folders are 0700 and files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        FileStore(folder).create("sessions/a/0", b"x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert modes == {0o700, 0o600}


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    """As is a link, and a folder of somebody else's."""
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 700"):
        FileStore(folder)
    folder.chmod(0o700)
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="no link"):
        FileStore(link)


def test_a_link_in_place_of_a_value_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither for reading nor for prolonging."""
    (tmp_path / "secret").write_bytes(b"TSF1" + bytes(8) + b"secret")
    store = FileStore(folder)
    (folder / "a@").symlink_to(tmp_path / "secret")
    for call in (lambda: store.get("a"), lambda: store.create("a", b"x")):
        with pytest.raises(StoreUnavailable, match="symbolic links"):
            call()
    store.sweep()
    store.delete("a")
    assert (tmp_path / "secret").read_bytes().endswith(b"secret")


def test_a_sweep_removes_what_is_over_and_empty_folders(folder: Path) -> None:
    """Not before its end, and not what lives on; a longer life asked for later counts, in another process too."""
    time = FakeTime()
    store = FileStore(folder, clock=time.clock)
    for key, ttl_s in (("a/a", 10.0), ("b/b", 20.0), ("c/c", None), ("d/d", 10.0)):
        store.create(key, b"x", ttl_s)
    FileStore(folder, clock=time.clock).create("d/d", b"x", 20.0)
    time.now += 10
    store.sweep()
    assert [key for key in "abcd" if store.list(key)] == ["b", "c", "d"]
    assert not (folder / "a").exists()


def test_temporary_files_of_others_are_left_alone_while_they_are_young(folder: Path) -> None:
    """Another process may be writing them right now."""
    store = FileStore(folder)
    (folder / "~" / "0123").write_bytes(b"half")
    store.sweep()
    assert _files(folder)
    FileStore(folder, clock=lambda: (folder / "~" / "0123").stat().st_ctime + 3601)
    assert not _files(folder)


@pytest.mark.parametrize("content", [b"", b"TSF1", b"something else"])
def test_a_file_that_is_no_value_is_told(folder: Path, content: bytes) -> None:
    """Such as one whose bytes were not on the disk yet when the power was lost; a sweep leaves it to a person."""
    store = FileStore(folder)
    (folder / "a@").write_bytes(content)
    with pytest.raises(StoreCorrupt, match="close the session"):
        store.get("a")
    with pytest.raises(StoreCorrupt):
        store.create("a", b"x")
    FileStore(folder, clock=lambda: 1e11).sweep()
    assert (folder / "a@").exists()
    store.delete("a")
    assert store.create("a", b"x")


def test_a_value_that_does_not_fit_leaves_nothing(folder: Path) -> None:
    """The write fails in its middle; the error can be retried, names no session, and says what to do."""
    store = FileStore(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            store.create("sessions/secret-id/0", bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "secret-id" not in str(caught.value)
    assert caught.value.cure
    assert not _files(folder)
    assert store.create("sessions/secret-id/0", bytes(1_000_000))


def test_a_place_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    """A file stands where the folder should."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        FileStore(tmp_path / "file" / "store")


def test_a_folder_that_is_gone_is_told(folder: Path) -> None:
    """While the server runs."""
    store = FileStore(folder)
    shutil.rmtree(folder)
    assert store.get("a") is None
    with pytest.raises(StoreUnavailable, match="is gone"):
        store.create("a", b"x")
