"""What a step does where a device has no memory left for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.asking import ask
from tests.support.harness import Harness, reference_reply
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.sampler import SamplingRow, sample
from ts_stateful.language.runner import Runner
from ts_stateful.protocol.requests import Prompt


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

    monkeypatch.setattr(f"ts_stateful.language.decoding.{name}", exhausted)
    assert harness.prompt("other", "Hi", max_new_tokens=1)["turn"] == 1
    assert held == [False]


def test_tokens_are_chosen_one_by_one_where_there_is_no_memory_for_all(
    harness: Harness, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session is idle that could give some, and none of those in progress is lost."""

    def exhausted(logits: Tensor, rows: Items[SamplingRow], *kernel: Any) -> list[int]:
        if len(rows) > 1:
            raise torch.OutOfMemoryError
        return sample(logits, rows, *kernel)

    monkeypatch.setattr("ts_stateful.language.decoding.sample", exhausted)
    harness.open("other")
    requests = [
        harness.submit(Prompt(session_id=name, prompt="Hi", max_new_tokens=3))
        for name in ("s", "other")
    ]
    harness.run()
    assert [harness.last(request)["turn"] for request in requests] == [1, 1]
    reference_reply(model, harness, "other", 3)
