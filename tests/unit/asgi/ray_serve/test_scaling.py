"""Autoscaling by open sessions and running turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from ts_stateful.asgi.ray_serve.scaling import SESSIONS, TURNS, SessionScaling


@dataclass
class Context:
    """The state of a deployment."""

    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None


@pytest.mark.parametrize(
    ("sessions", "turns", "needed"),
    [((0,), (0,), 1), ((4, 4), (0, 0), 2), ((9,), (1,), 3), ((1, 1, 1), (2, 2, 1), 3), ((), (), 1)],
)
def test_the_scarcer_of_both_decides(
    sessions: tuple[int, ...], turns: tuple[int, ...], needed: int
) -> None:
    """A replica is for four sessions and two turns; the sums of all replicas count."""
    context = Context({SESSIONS: dict(enumerate(sessions)), TURNS: dict(enumerate(turns))})
    assert SessionScaling(sessions=4, turns=2)(context) == (needed, {})


def test_no_metrics_need_one_replica() -> None:
    """As long as no replica has reported any."""
    assert SessionScaling(sessions=4, turns=2)(Context(None)) == (1, {})
