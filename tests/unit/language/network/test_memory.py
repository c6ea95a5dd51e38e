"""What is free on a GPU is shared out after loading has returned what it left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ts_stateful.config.schema import load_config
from ts_stateful.language.network.memory import is_out_of_memory, limits_of


def test_the_usual_budget_is_a_part_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that loading took and does not need any more is free."""
    free = [600]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(1000))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[-1], 2000))
    model: Any = SimpleNamespace(device=torch.device("cuda"))
    assert limits_of(model, load_config({}), None).device_bytes == 800
    asked = load_config({"handler": {"deviceCacheBytes": 5}})
    assert limits_of(model, asked, None).device_bytes == 5


def test_a_cpu_has_a_budget_in_a_container_and_nothing_beside_it() -> None:
    """The host's memory is the device's. Beyond a container's limit the kernel would kill the engine."""
    model: Any = SimpleNamespace(device=torch.device("cpu"))
    for free, engines, budget in ((None, 1, None), (1000, 1, 800), (1000, 4, 200)):
        groups: Any = SimpleNamespace(free_bytes=lambda free=free: free)
        config = load_config({"handler": {"hostCacheBytes": 7, "engines": engines}})
        limits = limits_of(model, config, 3, groups)
        assert (limits.max_sessions, limits.device_bytes, limits.host_bytes) == (3, budget, 0)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_errors_for_want_of_memory_are_known(error: Exception) -> None:
    """Others are not."""
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
