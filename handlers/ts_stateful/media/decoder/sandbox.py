"""The limits of a decoder process, which it sets itself before it reads the first image.

After that it can compute, allocate memory up to its limit, and talk over its socket. It can open no file or socket, start no
thread or process, and signal or trace no other process. A bug of a parser gives an attacker no more than that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["become_first_victim", "confine"]

_PR_SET_NAME, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 15, 22, 38  # of prctl(2)
_FILTER_MODE = 2  # SECCOMP_MODE_FILTER
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
# Instructions of classic BPF, and the offsets of struct seccomp_data.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_INSTRUCTION = struct.Struct("=HBBI")

# What a decoder needs: memory, its socket, its own clock and timer, and its end. By machine: AUDIT_ARCH, then read, write,
# close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, mremap, madvise, getpid,
# sendto, recvfrom, setitimer, exit, exit_group, futex, clock_gettime, getrandom, gettid, sched_yield.
# fmt: off
_CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (0xC000_003E, (
        0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 39, 44, 45, 38, 60, 231, 202, 228, 318, 186, 24,
    )),
    "aarch64": (0xC000_00B7, (
        63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 216, 233, 172, 206, 207, 103, 93, 94, 98, 113, 278, 178, 124,
    )),
}
# fmt: on


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def become_first_victim() -> None:
    """Name this process, and let the kernel's OOM killer take it before any other: the next one costs a moment."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"ts-decoder")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def confine(max_memory_bytes: int) -> bool:
    """Confine this process for good, with its standard input. Return False if the kernel takes no filter of system calls.

    `max_memory_bytes` are for images, beyond what is mapped now.
    """
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    libc = ctypes.CDLL(None)
    filter_ = _system_call_filter()
    # A container may allow 2^30 of them, and to try them all can take minutes.
    for path in sorted(Path("/proc/self/fd").iterdir())[1:]:  # without 0
        with contextlib.suppress(OSError):  # the folder's own
            os.close(int(path.name))
    for limit, value in (
        (resource.RLIMIT_AS, mapped + max_memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),  # no file descriptor can be made, those that are open work
    ):
        resource.setrlimit(limit, (value, value))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if filter_ is None:
        return False
    program = _Program(len(filter_) // _INSTRUCTION.size, filter_)
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) == 0)


def _system_call_filter() -> bytes | None:
    """Return a filter that refuses all other system calls with EPERM; None for an unknown machine."""
    known = _CALLS.get(platform.machine())
    if known is None:
        return None
    return b"".join(_INSTRUCTION.pack(*each) for each in _instructions(*known))


def _instructions(architecture: int, calls: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions as (code, jump if true, jump if false, value)."""
    yield _LOAD, 0, 0, _ARCHITECTURE_AT
    yield _JUMP_IF_EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _REFUSE
    yield _LOAD, 0, 0, _NUMBER_AT
    for at, number in enumerate(calls):
        yield _JUMP_IF_EQUAL, len(calls) - at, 0, number
    yield _RETURN, 0, 0, _REFUSE
    yield _RETURN, 0, 0, _ALLOW
