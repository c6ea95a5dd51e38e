"""Engines that compute steps ahead where there is no GPU."""

from __future__ import annotations

from typing import Any

from tests.support.harness import Harness
from tests.support.plain_capturer import PlainCapturer
from tests.support.table_kernels import TableKernels
from tests.support.tiny import MODELS
from ts_stateful.language.network.load import Model
from ts_stateful.language.runner import Runner


def with_graphs(name: str = "llama") -> Model:
    """Return a small model whose decode steps are replayed."""
    model = MODELS[name]()
    assert model.forward.use_kernels(TableKernels(model.forward.layout)) == ""
    assert model.forward.capture(PlainCapturer())
    return model


def ahead(model: Model, config: dict[str, Any] | None = None, **fields: Any) -> Harness:
    """Return an engine that computes steps ahead, as on a GPU."""
    harness = Harness(model, config, **fields)
    runner_of(harness).runs_ahead = True
    return harness


def runner_of(harness: Harness) -> Runner:
    """Return what runs the model's passes."""
    return harness.kind.decoding.runner
