"""What a step does where a device has no memory left for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.asking import ask
from tests.support.harness import Harness
from ts_stateful.engine.runner import Runner
from ts_stateful.engine.sampler import sample


@pytest.mark.parametrize(("name", "work"), [("Runner.run", Runner.run), ("sample", sample)])
def test_what_a_failed_pass_has_computed_is_not_kept_for_the_next_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[..., Any]
) -> None:
    """A GPU may need that very memory, which the frames of an exception hold for as long as it is handled."""
    harness.ask(ask())
    harness.open("other")
    computed: list[weakref.ref[Any]] = []
    held: list[bool] = []

    def exhausted(*args: Any) -> Any:
        held.extend(there() is not None for there in computed)
        if not computed:
            activations = torch.empty(1)
            computed.append(weakref.ref(activations))
            raise torch.OutOfMemoryError
        return work(*args)

    monkeypatch.setattr(f"ts_stateful.engine.engine.{name}", exhausted)
    assert harness.prompt("other", "Hi", max_new_tokens=1)["turn"] == 1
    assert held == [False]
