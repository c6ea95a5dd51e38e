"""Limits of the control groups that a process is in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ts_stateful.config.control_groups import ControlGroups

SECOND = "0::/kubepods/pod"
FIRST = "4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n9:name=systemd:/\n0::/\n"


def groups(root: Path, own: str, files: dict[str, str]) -> ControlGroups:
    """Return the groups that `own` names, with these files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (root / "own").write_text(own)
    return ControlGroups(root, root / "own")


@pytest.mark.parametrize(
    ("own", "files", "cpus", "memory", "free", "killed"),
    [
        (SECOND, {}, math.inf, None, None, 0),
        (
            SECOND,
            {
                "kubepods/pod/cpu.max": "max 100000",
                "kubepods/cpu.max": "150000 100000",
                "kubepods/pod/memory.max": "max",
                "kubepods/pod/memory.stat": "anon 1024\nfile 9999",
                "kubepods/memory.max": "4096",
                "kubepods/memory.stat": "anon 4000\nfile 9999\nkernel 5",
                "kubepods/pod/memory.events": "oom 3\noom_kill 2\noom_group_kill 1",
            },
            1.5,
            4096,
            96,
            2,
        ),
        (  # a container sees its own group as the root
            FIRST,
            {
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "8192",
                "memory/memory.stat": "cache 7000\nrss 100\ntotal_cache 7000\ntotal_rss 192",
                "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
            },
            0.5,
            8192,
            8000,
            1,
        ),
        (
            FIRST,
            {
                "cpu/docker/1/cpu.cfs_quota_us": "-1",
                "cpu/docker/1/cpu.cfs_period_us": "100000",
                "memory/docker/1/memory.limit_in_bytes": "9223372036854771712",
            },
            math.inf,
            None,
            None,
            0,
        ),
    ],
)
def test_the_lowest_limit_counts(
    tmp_path: Path,
    own: str,
    files: dict[str, str],
    cpus: float,
    memory: int | None,
    free: int | None,
    killed: int,
) -> None:
    """Of the process's own group and those around it, in both versions."""
    found = groups(tmp_path, own, files)
    assert found.cpus() == cpus
    machine = ControlGroups(tmp_path, tmp_path / "absent").memory_bytes()
    assert found.memory_bytes() == (memory or machine)
    assert found.free_bytes() == free
    assert found.num_killed() == killed


def test_a_system_without_groups_has_no_limits(tmp_path: Path) -> None:
    """Nor has one without /proc."""
    without = ControlGroups(tmp_path, tmp_path / "absent")
    assert (without.cpus(), without.num_killed()) == (math.inf, 0)
    assert without.memory_bytes() > 1_000_000
