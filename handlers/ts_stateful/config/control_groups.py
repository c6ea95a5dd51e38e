"""Limits of this process's control groups, as containers and services have them."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ControlGroups"]

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_USED = re.compile(r"^(?:anon|total_rss) (\d+)", re.MULTILINE)  # in version 2, and 1


class ControlGroups:
    """The groups of version 1 or 2 that `own` names, and those around them, whose files are below `root`."""

    def __init__(self, root: Path = _ROOT, own: Path = _OWN) -> None:
        self._root = root
        self._own = own

    def cpus(self) -> float:
        """Return the processors for which there is time; infinity without a limit."""
        quotas = self._read("cpu", "cpu.cfs_quota_us")
        periods = self._read("cpu", "cpu.cfs_period_us")
        pairs = [text.split() for text in self._read("cpu", "cpu.max")]
        pairs += map(list, zip(quotas, periods, strict=False))
        limits = [int(quota) / int(period) for quota, period in pairs if quota.isdecimal()]
        return min(limits, default=math.inf)

    def memory_bytes(self) -> int:
        """Return the memory that may be used: that of the machine, or less."""
        return min([_MACHINE, *(limit for _, limit in self._memory_limits())])

    def free_bytes(self) -> int | None:
        """Return the memory that processes of the groups leave; None without a limit. What is cached of files is free."""
        free = []
        for folder, limit in self._memory_limits():
            counts = (_USED.findall(text) for text in _texts(folder, "memory.stat"))
            free.append(limit - sum(int(count) for found in counts for count in found))
        return max(0, min(free)) if free else None

    def num_killed(self) -> int:
        """Count what the kernel has killed at a limit of memory."""
        texts = self._read("memory", "memory.events", "memory.oom_control")
        return sum(int(count) for text in texts for count in re.findall(r"oom_kill (\d+)", text))

    def _memory_limits(self) -> Iterator[tuple[Path, int]]:
        """Yield the groups that may use less memory than the machine has."""
        for folder in self._folders("memory"):
            for limit in _texts(folder, "memory.max", "memory.limit_in_bytes"):
                if limit.isdecimal() and int(limit) < _MACHINE:
                    yield folder, int(limit)

    def _read(self, controller: str, *names: str) -> list[str]:
        return [text for folder in self._folders(controller) for text in _texts(folder, *names)]

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of all groups. A container may see its own group as the root."""
        with contextlib.suppress(OSError):
            for line in self._own.read_text(encoding="utf-8").splitlines():
                _, controllers, group = line.split(":", 2)
                if not controllers or controller in controllers.split(","):
                    base = self._root / (controller if controllers else "")
                    own = base / group.strip("/")
                    yield from (one for one in (own, *own.parents) if one.is_relative_to(base))


def _texts(folder: Path, *names: str) -> Iterator[str]:
    """Yield the contents of the files that there are."""
    for name in names:
        with contextlib.suppress(OSError):
            yield (folder / name).read_text(encoding="utf-8").strip()
