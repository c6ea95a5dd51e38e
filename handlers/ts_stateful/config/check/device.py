"""The rule for the name of a device, which is judged without a look at this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ts_stateful.config.check.finding import Finding, error
from ts_stateful.config.schema import EngineConfig

__all__ = ["check_device"]

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def check_device(engine: EngineConfig) -> Iterator[Finding]:
    """Find a device that no machine has."""
    if not _DEVICE.fullmatch(engine.device):
        yield error(
            "handler.device",
            f"there is no device {engine.device[:64]!r}",
            "write auto, cpu, cuda, or cuda:1 for the second GPU",
        )
