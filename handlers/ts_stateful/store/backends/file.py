"""Values as files: whole or missing, whenever a process is killed, and one per key.

A value is written under a temporary name. `link` gives it its own name, and fails if that is taken. `sessions/a/00000001`
is the file `sessions/a/00000001@`: no key has an `@`, so a key can be a value and a prefix of others. Before the value
are 12 bytes: `TSF1` and, big-endian, the millisecond of Unix time until which it must be kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import ConfigError
from ts_stateful.store.base import Capacity, StoreCorrupt, StoreUnavailable, check_key

__all__ = ["FileStore"]

_HEADER = struct.Struct(">4sQ")
_MAGIC = b"TSF1"
_FOREVER = 2**64 - 1
_VALUE = "@"
_TEMPORARY = "~"
_ABANDONED_S = 3600.0  # older files were left by a crash: no write takes this long
_MAX_TRIES = 1000
_PAUSE_S = 0.001
_NO_SPACE = "free some space, or name another folder in handler.store.url"
_CURES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EROFS: "mount it for writing, or name another folder in handler.store.url",
    errno.EACCES: "give the server's user read and write access to the folder and all in it",
    errno.EPERM: "name a folder of the server's user on a file system with hard links",
    errno.EOPNOTSUPP: "name a folder on a file system with hard links",
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "raise the limit of open files",
}


class FileStore:
    """A folder that processes of one user share.

    With `fsync` a created value survives a loss of power, without it only the loss of processes.

    Raises:
        ConfigError: the folder belongs to, or is open to, other users.
        StoreUnavailable: it cannot be made or written.
    """

    def __init__(self, folder: Path, *, fsync: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        self.folder = folder
        self._temporary = folder / _TEMPORARY
        self._fsync = fsync
        self._clock = clock
        with self._reported():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder)
            self._temporary.mkdir(mode=0o700, exist_ok=True)
            self._sweep_temporary()

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """See `Store`."""
        path = self._path(key)
        end_ms = _FOREVER if ttl_s is None else int((self._clock.unix() + ttl_s) * 1000)
        with self._reported():
            for _ in range(_MAX_TRIES):
                try:
                    if self._prolong(path, end_ms):
                        return False
                    if self._publish(path, (_HEADER.pack(_MAGIC, end_ms), data)):
                        return True
                except FileNotFoundError:
                    continue  # another process removed a folder, which was empty or deleted
                except BlockingIOError:
                    self._clock.sleep(_PAUSE_S)  # another process prolongs or sweeps the value
                except StoreCorrupt:
                    return False  # its name is taken all the same
        raise StoreUnavailable(
            f"the folder {self.folder} is missing, or changes all the time",
            "find the process that removes files there, and restart the server",
        )

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        path = self._path(key)
        with self._reported(), contextlib.suppress(FileNotFoundError), _opened(path) as file:
            _end_ms(file.fileno())
            file.seek(_HEADER.size)
            return file.read()
        return None

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """See `Store`."""
        return [self.get(key) for key in keys]

    def list(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        folder = self.folder / check_key(prefix)
        keys = []
        with self._reported():
            for parent, _, names in os.walk(folder, onerror=_raise_unless_missing):
                relative = Path(parent).relative_to(self.folder).as_posix()
                keys += [f"{relative}/{n[: -len(_VALUE)]}" for n in names if n.endswith(_VALUE)]
        return sorted(keys)

    def delete(self, prefix: str) -> None:
        """See `Store`. All values below `prefix` vanish at once. The next call removes what this one leaves if it fails."""
        value, folder = self._path(prefix), self.folder / prefix
        name = hashlib.sha256(prefix.encode()).hexdigest()
        with self._reported():
            value.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                folder.rename(self._temporary / f"{name}.{secrets.token_hex(8)}")
            for removed in self._temporary.glob(f"{name}.*"):
                shutil.rmtree(removed, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):
                    removed.rmdir()  # fails if a part of it stays
            self._tidy(folder.parent)

    def delete_keys(self, keys: Sequence[str]) -> None:
        """See `Store`."""
        paths = [self._path(key) for key in keys]
        with self._reported():
            for path in paths:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in paths}:
                self._tidy(folder)

    def remove(self, key: str, data: bytes) -> None:
        """See `Store`."""
        path = self._path(key)
        with self._reported(), contextlib.suppress(FileNotFoundError):
            _remove_if(path, lambda file: file.read()[_HEADER.size :] == data)
            self._tidy(path.parent)

    def sweep(self) -> None:
        """Remove expired values, empty folders, and files left by crashes.

        The last entries of a session go first, so an interrupted sweep leaves a valid session. A folder that cannot be read,
        `lost+found` for instance, is reported after the others were swept.
        """
        failed: list[OSError] = []
        with self._reported():
            self._sweep_temporary()
            now_ms = int(self._clock.unix() * 1000)
            for parent, _, names in os.walk(self.folder, topdown=False, onerror=failed.append):
                folder = Path(parent)
                if folder == self.folder or self._temporary in (folder, *folder.parents):
                    continue
                for name in sorted(names, reverse=True):
                    if name.endswith(_VALUE):
                        # Keep what cannot be judged: a value that is being prolonged, and a foreign file.
                        with contextlib.suppress(OSError, StoreCorrupt):
                            _remove_if(folder / name, lambda f: _end_ms(f.fileno()) <= now_ms)
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()
            for error in failed:
                _raise_unless_missing(error)

    def capacity(self) -> Capacity:
        """Return the size of the file system, and what is free for users without privileges."""
        with self._reported():
            found = os.statvfs(self.folder)
        return Capacity(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, key: str) -> Path:
        return self.folder / f"{check_key(key)}{_VALUE}"

    def _prolong(self, path: Path, end_ms: int) -> bool:
        """Keep the value until `end_ms` at least. Return False if there is none."""
        with contextlib.suppress(FileNotFoundError), _opened(path, os.O_RDWR) as file:
            descriptor = file.fileno()
            if _end_ms(descriptor) < end_ms:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
                if not os.path.samestat(os.fstat(descriptor), path.lstat()):
                    return False  # swept and created again a moment ago
                if _end_ms(descriptor) < end_ms:
                    os.pwrite(descriptor, _HEADER.pack(_MAGIC, end_ms), 0)
                    if self._fsync:
                        os.fsync(descriptor)
            return True
        return False

    def _publish(self, path: Path, parts: Sequence[bytes]) -> bool:
        """Write a file of these parts. Return False if its name is taken."""
        temporary = self._temporary / secrets.token_hex(16)
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(parts)
                file.flush()
                if self._fsync:
                    os.fsync(descriptor)
            folders = [self.folder / folder for folder in path.relative_to(self.folder).parents]
            for folder in reversed(folders):
                # Not `exist_ok`, which fails where another process removes the folder a moment later.
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
            try:
                os.link(temporary, path)
            except FileExistsError:
                # Over NFS the reply to a successful link can be lost; the second attempt then finds the first.
                if temporary.stat().st_nlink != 2:
                    return False
        finally:
            temporary.unlink(missing_ok=True)
        if self._fsync:
            for folder in folders:
                _sync(folder)
        return True

    def _tidy(self, folder: Path) -> None:
        """Remove a folder if it is empty, and write to the disk what was removed from it."""
        with contextlib.suppress(OSError):  # it is not empty, or missing
            folder.rmdir()
        if self._fsync:
            _sync(next(one for one in (folder, *folder.parents) if one.is_dir()))

    def _sweep_temporary(self) -> None:
        for entry in os.scandir(self._temporary):
            with contextlib.suppress(FileNotFoundError):
                # Not the time of modification, which for a folder is before its removal.
                if entry.stat(follow_symlinks=False).st_ctime >= self._clock.unix() - _ABANDONED_S:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)  # another process may remove it
                else:
                    Path(entry.path).unlink()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report errors with the folder, not the file, whose name contains a session id."""
        try:
            yield
        except OSError as error:
            cure = _CURES.get(error.errno or 0, "check the file system and the kernel's log")
            reason = f"the folder {self.folder}: {error.strerror}"
            raise StoreUnavailable(reason, cure, is_full=cure == _NO_SPACE) from error


def _check_private(folder: Path) -> None:
    """Check the owner and the mode: any user can make folders under /dev/shm or /tmp."""
    info = folder.lstat()
    is_own = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
    if not is_own or info.st_mode & 0o077:
        raise ConfigError(
            f"handler.store.url: {folder} must be a folder, not a link, that belongs to the server's user and is closed to "
            f"all others; run chmod 700 on it, or name a new folder below it"
        )


def _end_ms(descriptor: int) -> int:
    """Read the time until which a value must be kept."""
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise StoreCorrupt(
            "a file is not a value of this store, or was incomplete when the power was lost",
            "erase the session (`close` with `erase`), and set handler.store.fsync to survive a loss of power",
        )
    return int(_HEADER.unpack(header)[1])


def _opened(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _remove_if(path: Path, is_due: Callable[[BinaryIO], bool]) -> None:
    with _opened(path, os.O_RDWR) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_named = os.path.samestat(os.fstat(file.fileno()), path.lstat())  # or was created again
        if is_named and is_due(file):
            path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
