"""The devices of engines."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.process.worker import devices as devices_module
from ts_stateful.process.worker.devices import devices


def devices_of(handler: dict[str, Any]) -> list[list[str]]:
    """Return the devices of the engines of a configuration."""
    settings = load_config({"handler": handler}).handler
    return devices(settings, settings.tensor_parallel)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ({}, [["cpu"]]),
        ({"engines": 3}, [["cpu"]] * 3),
        ({"device": "cpu", "engines": "auto"}, [["cpu"]]),
        ({"tensorParallel": 2}, [["cpu", "cpu"]]),
        ({"tensorParallel": 2, "engines": 2}, [["cpu", "cpu"]] * 2),
    ],
)
def test_each_device_has_one_engine(
    handler: dict[str, Any], expected: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the configuration sets their number. Ranks of a split model share the CPU."""
    monkeypatch.setattr(devices_module, "_num_gpus", lambda: 0)
    assert devices_of(handler) == expected


def test_engines_of_one_gpu_need_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each would use all of its free memory."""
    monkeypatch.setattr(devices_module, "_num_gpus", lambda: 2)
    assert devices_of({}) == [["cuda:0"], ["cuda:1"]]
    shared: dict[str, Any] = {"engines": 3}
    with pytest.raises(ConfigError, match=r"handler\.deviceCacheBytes"):
        devices_of(shared)
    shared["deviceCacheBytes"] = 10**9
    assert devices_of(shared) == [["cuda:0"], ["cuda:1"], ["cuda:0"]]
    named: dict[str, Any] = {"device": "cuda:1", "engines": 2}
    with pytest.raises(ConfigError, match="2 engines share cuda:1:"):
        devices_of(named)
    named["deviceCacheBytes"] = 10**9
    assert devices_of(named) == [["cuda:1"], ["cuda:1"]]


def test_a_split_model_takes_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine has GPUs of its own; one that is left over stays idle."""
    monkeypatch.setattr(devices_module, "_num_gpus", lambda: 5)
    assert devices_of({"tensorParallel": 2}) == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]
    with pytest.raises(ConfigError, match=r"handler\.engines: 3 engines share"):
        devices_of({"tensorParallel": 2, "engines": 3})


@pytest.mark.parametrize("device", ["auto", "cuda:1"])
def test_too_few_gpus_are_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks cannot share a GPU."""
    monkeypatch.setattr(devices_module, "_num_gpus", lambda: 1)
    with pytest.raises(ConfigError, match=r"handler\.tensorParallel: an engine needs 2 GPUs"):
        devices_of({"tensorParallel": 2, "device": device})
