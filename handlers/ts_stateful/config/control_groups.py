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
        limits = self._read("memory", "memory.max", "memory.limit_in_bytes")
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min([machine, *(int(limit) for limit in limits if limit.isdecimal())])

    def num_killed(self) -> int:
        """Count what the kernel has killed at a limit of memory."""
        texts = self._read("memory", "memory.events", "memory.oom_control")
        return sum(int(count) for text in texts for count in re.findall(r"oom_kill (\d+)", text))

    def _read(self, controller: str, *names: str) -> list[str]:
        """Return the contents of the files in all groups. A container may see its own group as the root."""
        texts = []
        for base, group in self._groups(controller):
            for folder in (base / group, *(base / group).parents):
                if folder.is_relative_to(base):
                    for name in names:
                        with contextlib.suppress(OSError):
                            texts.append((folder / name).read_text(encoding="utf-8").strip())
        return texts

    def _groups(self, controller: str) -> Iterator[tuple[Path, str]]:
        with contextlib.suppress(OSError):
            for line in self._own.read_text(encoding="utf-8").splitlines():
                _, controllers, group = line.split(":", 2)
                if not controllers or controller in controllers.split(","):
                    yield self._root / (controller if controllers else ""), group.strip("/")
