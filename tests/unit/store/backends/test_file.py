"""Values as files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.store_behaviour import StoreBehaviour
from tests.support.store_processes import VALUE
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable

_PROCESS = [sys.executable, "-m", "tests.support.store_processes"]
_ENTRIES = [f"sessions/a/{position:08d}" for position in range(4)]


class TestFileStore(StoreBehaviour):
    """The contract of every store."""

    @pytest.fixture(params=[False, True], ids=["quick", "fsync"])
    def store(self, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
        """Return an empty store."""
        return FileStore(tmp_path / "store", fsync=request.param)


def test_its_capacity_is_that_of_the_file_system(tmp_path: Path) -> None:
    """With the bytes that this user may still write."""
    capacity = FileStore(tmp_path / "store").capacity()
    disk = shutil.disk_usage(tmp_path)
    assert capacity.total_bytes == disk.total
    assert 0 < capacity.free_bytes <= disk.total


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the path of a store."""
    return tmp_path / "store"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_removal_survives_a_loss_of_power(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced after that of one value, too, or the one above it when it is empty."""
    store = FileStore(folder, fsync=True)
    for position in range(2):
        store.create(f"sessions/a/{position:08}", b"x")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    store.remove("sessions/a/00000000", b"x")
    assert synced == [(folder / "sessions" / "a").stat().st_ino]
    store.delete_keys(["sessions/a/00000001"])
    assert synced[1:] == [(folder / "sessions").stat().st_ino]


def _killed(repository: Path, folder: Path, operation: str) -> list[FileStore]:
    """Return a store for each step of the operation before which its process was killed, and one where it was not."""
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
    assert count >= 2, "no steps were counted"
    return [FileStore(folder / str(number)) for number in range(count + 1)]


def test_a_writer_that_is_killed_leaves_a_whole_value_or_none(
    repository: Path, folder: Path
) -> None:
    """Before any step. Its remains are removed, and a key without a value can be created."""
    stores = _killed(repository, folder, "create")
    there = [store.get(_ENTRIES[0]) for store in stores]
    assert set(there) == {None, VALUE}
    assert there == sorted(there, key=bool)
    for store, value in zip(stores, there, strict=True):
        assert store.create(_ENTRIES[0], VALUE) == (value is None)
        FileStore(store.folder, clock=FakeClock(1e11))
        assert [path.name for path in _files(store.folder)] == ["00000000@"]


def test_a_prolongation_that_is_interrupted_leaves_the_old_or_the_new_life(
    repository: Path, folder: Path
) -> None:
    """The value stays the same."""
    lives = []
    for store in _killed(repository, folder, "prolong"):
        assert store.get(_ENTRIES[0]) == VALUE
        FileStore(store.folder, clock=FakeClock(1e11)).sweep()
        lives.append(len(store.list("sessions")))
    assert set(lives) == {0, 1}
    assert lives == sorted(lives)


def test_a_removal_that_is_interrupted_is_complete_or_did_nothing(
    repository: Path, folder: Path
) -> None:
    """A session is never there in part, and a second removal leaves nothing of it."""
    stores = _killed(repository, folder, "delete")
    assert {len(store.list("sessions/a")) for store in stores} == {0, len(_ENTRIES)}
    for store in stores:
        store.delete("sessions/a")
        assert not _files(store.folder)


def test_a_removal_beside_that_of_another_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one renames the folder after this one has looked for what is left of an earlier call."""
    store, other, real = FileStore(folder), FileStore(folder), shutil.rmtree
    store.create(_ENTRIES[0], b"x")
    looked = list[Path]()

    def removes(path: Path, **options: Any) -> None:
        if looked and path.exists():
            raise KeyboardInterrupt
        real(path, **options)
        looked.append(path)
        if len(looked) == 1:
            with contextlib.suppress(KeyboardInterrupt):
                other.delete("sessions/a")

    monkeypatch.setattr(shutil, "rmtree", removes)
    store.delete("sessions/a")
    assert not _files(folder)


def test_a_sweep_that_is_interrupted_leaves_the_first_entries_of_a_session(
    repository: Path, folder: Path
) -> None:
    """The last entries go first."""
    left = [list(store.list("sessions/a")) for store in _killed(repository, folder, "sweep")]
    assert left == [_ENTRIES[: len(keys)] for keys in left]
    assert left[-1] == []


def test_of_two_processes_one_creates(repository: Path, folder: Path) -> None:
    """Two processes create the same keys as fast as they can. Each key has one winner, whose value stays."""
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


def test_other_users_cannot_read(folder: Path) -> None:
    """Folders are 0700 and files 0600, with any umask."""
    before = os.umask(0)
    try:
        FileStore(folder).create("sessions/a/0", b"x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert modes == {0o700, 0o600}


def test_a_folder_that_other_users_can_enter_is_refused(folder: Path) -> None:
    """A link is refused too."""
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 700"):
        FileStore(folder)
    folder.chmod(0o700)
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="not a link"):
        FileStore(link)


def test_a_link_in_place_of_a_value_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither by a read nor by a prolongation."""
    (tmp_path / "secret").write_bytes(b"TSF1" + bytes(8) + b"secret")
    store = FileStore(folder)
    (folder / "a@").symlink_to(tmp_path / "secret")
    for call in (lambda: store.get("a"), lambda: store.create("a", b"x")):
        with pytest.raises(StoreUnavailable, match="symbolic links"):
            call()
    store.sweep()
    store.delete("a")
    assert (tmp_path / "secret").read_bytes().endswith(b"secret")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_sweep_goes_on_beside_folders_of_another_user() -> None:
    """It reports them after all others, wherever they are in the order of the file system."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        folder = Path(made, "store")
        for path in (folder, folder / "a", folder / "lost+found", folder / "z"):
            path.mkdir(mode=0o700)
        for path in (folder, folder / "a", folder / "z"):
            os.chown(path, 54321, -1)
        os.seteuid(54321)
        try:
            store = FileStore(folder)
            for key in ("a/1", "z/1"):
                store.create(key, b"x", -1.0)
            with pytest.raises(StoreUnavailable, match="give the server's user"):
                store.sweep()
            assert not _files(folder)
        finally:
            os.seteuid(0)


def test_a_sweep_removes_expired_values_and_empty_folders(folder: Path) -> None:
    """Never before the end of a life. A later call prolongs it, in another process too."""
    clock = FakeClock()
    store = FileStore(folder, clock=clock)
    for key, ttl_s in (("a/a", 10.0), ("b/b", 20.0), ("c/c", None), ("d/d", 10.0)):
        store.create(key, b"x", ttl_s)
    FileStore(folder, clock=clock).create("d/d", b"x", 20.0)
    clock.now += 10
    store.sweep()
    assert [key for key in "abcd" if store.list(key)] == ["b", "c", "d"]
    assert not (folder / "a").exists()


def test_a_sweep_keeps_a_value_that_was_created_again_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweep removes the expired one, and its key is used again, between the open and the lock of this one."""
    clock = FakeClock()
    store, other = FileStore(folder, clock=clock), FileStore(folder, clock=clock)
    store.create("a/a", b"old", 10.0)
    clock.now += 10
    lock, waiting = fcntl.flock, [True]

    def late(descriptor: int, operation: int) -> None:
        if waiting and waiting.pop():
            other.sweep()
            assert other.create("a/a", b"new", 10.0)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    store.sweep()
    assert other.get("a/a") == b"new"


def test_recent_temporary_files_of_other_processes_stay(folder: Path) -> None:
    """Another process may still write them."""
    store = FileStore(folder)
    (folder / "~" / "0123").write_bytes(b"half")
    store.sweep()
    assert _files(folder)
    clock = FakeClock()
    clock.now += (folder / "~" / "0123").stat().st_ctime + 3601 - clock.unix()
    FileStore(folder, clock=clock)
    assert not _files(folder)


@pytest.mark.parametrize("content", [b"", b"TSF1", b"something else"])
def test_a_file_that_is_not_a_value_is_reported(folder: Path, content: bytes) -> None:
    """Such as one that was incomplete when the power was lost. A sweep leaves it for the operator."""
    store = FileStore(folder)
    (folder / "a@").write_bytes(content)
    with pytest.raises(StoreCorrupt, match="erase the session"):
        store.get("a")
    assert not store.create("a", b"x", ttl_s=10)
    FileStore(folder, clock=FakeClock(1e11)).sweep()
    assert (folder / "a@").exists()
    store.delete("a")
    assert store.create("a", b"x")


def test_a_value_that_does_not_fit_leaves_nothing(folder: Path) -> None:
    """The write fails halfway. The error can be retried, names no session, and has a remedy."""
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


def test_a_folder_that_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        FileStore(tmp_path / "file" / "store")


def test_a_missing_folder_is_reported(folder: Path) -> None:
    """While the server runs."""
    store = FileStore(folder)
    shutil.rmtree(folder)
    assert store.get("a") is None
    with pytest.raises(StoreUnavailable, match="is missing"):
        store.create("a", b"x")


def test_a_value_that_is_removed_leaves_no_folder(folder: Path) -> None:
    """One that was written after its session was removed, for instance."""
    store = FileStore(folder)
    for key in ("sessions/a/00000000", "sessions/b/00000000", "sessions/b/00000001"):
        store.create(key, b"x")
    store.delete("sessions/a/00000000")
    store.delete("sessions/b/00000000")
    assert [path.name for path in (folder / "sessions").iterdir()] == ["b"]
