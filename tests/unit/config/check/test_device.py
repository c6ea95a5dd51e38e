"""The names of devices, checked before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.check import check_config
from ts_stateful.config.schema import load_config

TENSORS = {key: [{"name": key[0], "shape": [1]}] for key in ("inputs", "outputs", "states")}


def found(handler: dict[str, Any]) -> dict[str, str]:
    """Return the errors of a handler by their key, without rules of TorchServe's."""
    findings = check_config(load_config({"handler": handler}), torchserve=False)
    return {
        finding.key: f"{finding.message}; {finding.cure}"
        for finding in findings
        if finding.severity == "error"
    }


@pytest.mark.parametrize("kind", [{}, TENSORS])
@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda1", "GPU 0", ""])
def test_a_device_that_does_not_exist_is_an_error(kind: dict[str, Any], device: str) -> None:
    """Of models of both kinds, before the weights are read."""
    assert f"no device {device!r}" in found({**kind, "device": device})["handler.device"]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:13"])
def test_the_documented_devices_are_taken(device: str) -> None:
    """A machine without a GPU can check the file of one that has some."""
    assert not found({"device": device})
