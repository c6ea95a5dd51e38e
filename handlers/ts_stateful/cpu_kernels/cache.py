"""The folder of compiled kernels, from which only files that no other user can have written are loaded."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import secrets
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["load_or_compile"]

logger = logging.getLogger(__name__)

_COMPILE_S: Final = 120
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LINKED: Final = (errno.ELOOP, errno.ENOTDIR)
_FOR_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_COMPILER: Final = str(Path(__file__).with_name("compiler.py"))


class _Untrusted(OSError):
    """Another user can have written a folder or a file; the message has the reason."""


def load_or_compile(cache: Path, name: str, command: Sequence[str]) -> ctypes.CDLL:
    """Load the library `name` from the folder `cache`; compile it there first if it is missing or untrusted.

    A folder that another user can write is not used: a temporary one, which is removed again, takes its place. `command`
    compiles; `-o` and the file are added.

    Raises:
        OSError: no folder can be written, or the library cannot be loaded.
        SubprocessError: the compiler failed.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = _open_folder(cache)
    except OSError as error:
        logger.warning(
            "compiled CPU kernels are not kept in %s: %s; run chmod 700 on a folder of the server's user, or name one in"
            " XDG_CACHE_HOME",
            cache,
            error.strerror or error,
        )
        with tempfile.TemporaryDirectory(prefix="ts-kernels-") as made:
            return _load(_open_folder(Path(made)), name, command)
    return _load(folder, name, command)


def _load(folder: int, name: str, command: Sequence[str]) -> ctypes.CDLL:
    """Load or compile in an open folder.

    Names are looked up in the folder that was checked, even if another one has its path by now. The folder stays open: the
    loader identifies libraries by their paths, so another folder must not get its number.
    """
    try:
        return _load_checked(folder, name) or _compile(folder, name, command)
    except BaseException:
        os.close(folder)
        raise


def _load_checked(folder: int, name: str) -> ctypes.CDLL | None:
    """Return the library, or None if it is missing or untrusted."""
    try:
        _check_file(name, folder)
    except FileNotFoundError:
        return None
    except _Untrusted as error:
        logger.warning("the compiled CPU kernels %s are compiled again: %s", name, error)
        return None
    return ctypes.CDLL(f"/proc/self/fd/{folder}/{name}")


def _compile(folder: int, name: str, command: Sequence[str]) -> ctypes.CDLL:
    """Write a library in one step, so that another process finds all of it or what was there before; load it."""
    logger.info("compiling CPU kernels")
    built = f".{secrets.token_hex(8)}.so"
    try:
        subprocess.run(
            [sys.executable, "-IS", _COMPILER, str(os.getpid()), *command, "-o", built],
            check=True,
            capture_output=True,
            timeout=_COMPILE_S,
            cwd=f"/proc/self/fd/{folder}",
            env={**os.environ, "TMPDIR": "."},
        )
        os.chmod(built, 0o600, dir_fd=folder)  # the umask may let others write
        os.replace(built, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(built, dir_fd=folder)
    return ctypes.CDLL(f"/proc/self/fd/{folder}/{name}")


def _open_folder(path: Path) -> int:
    """Open a folder that only this user can write."""
    with _explained():
        folder = os.open(path, _OPEN | os.O_DIRECTORY)
    try:
        _check_owner(os.fstat(folder))
    except OSError:
        os.close(folder)
        raise
    return folder


def _check_file(name: str, folder: int) -> None:
    """Check a file that only this user can have written. Nobody else can replace it: the folder is this user's alone."""
    with _explained():
        file = os.open(name, _OPEN, dir_fd=folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _Untrusted("it is not a plain file with one name")
        _check_owner(status)
    finally:
        os.close(file)


def _check_owner(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise _Untrusted(f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & _FOR_OTHERS:
        raise _Untrusted(f"other users can write it (mode {stat.S_IMODE(status.st_mode):04o})")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _LINKED:
            raise _Untrusted("it is a link, or has another type") from error
        raise
