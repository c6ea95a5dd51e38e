"""Ranges that many settings share."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.schema import ConfigError, load_config


@pytest.mark.parametrize("value", [float("inf"), 1e30])
@pytest.mark.parametrize(
    "path",
    [
        *("drainSec", "heartbeatSec", "loadTimeoutSec", "queuedSequenceSec"),
        *("media.timeoutSec", "store.timeoutSec", "implicitSessions.idleSec"),
    ],
)
def test_a_time_without_an_end_is_refused(path: str, value: float) -> None:
    """Neither system calls nor JSON, by which processes get settings, have a place for it."""
    document: Any = value
    for key in reversed(path.split(".")):
        document = {key: document}
    with pytest.raises(ConfigError, match=rf"handler\.{path}: expected `float` <= 2000000"):
        load_config({"handler": document})


def test_threads_have_a_bound() -> None:
    """A number beyond it would end each engine while it loads."""
    with pytest.raises(ConfigError, match=r"handler\.threads: expected `int` <= 4096"):
        load_config({"handler": {"threads": 10**30}})
