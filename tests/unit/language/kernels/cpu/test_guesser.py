"""Layers in 8 bits compute with the rounded weights, and are used where that gains time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.kernels import language_kernels
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.language.kernels.cpu import guesser
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers
from ts_stateful.language.kernels.cpu.guesser import GuessPlan, find_guesser, plan_guesses
from ts_stateful.language.kernels.cpu.rounded import Rounded
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.network.load import Model

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
GUESS_MS = 2.0


def fused_of(model: Model) -> FusedLayers:
    forward = model.forward
    decoder = find_decoder(forward.network)
    return FusedLayers(decoder, forward.layout, forward.windows, language_kernels())


def limited_to(num_bytes: int, folder: Path) -> ControlGroups:
    """Return control groups with so much memory."""
    (folder / "memory.max").write_text(str(num_bytes), encoding="utf-8")
    own = folder / "own"
    own.write_text("0::/\n", encoding="utf-8")
    return ControlGroups(folder, own)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "phi3", "glm4", "gemma3", "qwen2", "granite"])
def test_rounded_layers_compute_with_rounded_weights(name: str) -> None:
    """For few rows and many, of one session and of several; the real weights stay as they are."""
    model = {**MODELS, **MORE_MODELS}[name]()
    layers = fused_of(model).rounded()
    for module in model.network.get_decoder().layers.modules():
        if isinstance(module, nn.Linear):
            numbers, units = Rounded.of(module.weight)
            module.weight.copy_(numbers * units[:, None])
    for counts in ((1,), (1, 1, 1), (2, 5), (9, 1, 20)):
        found, expected = (
            compute(model, counts) for compute in (lambda *case: by(layers, *case), stock)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def stock(model: Model, counts: tuple[int, ...]) -> torch.Tensor:
    rows = rows_of(model, counts)
    return model.forward(rows.ids, rows.spans, rows.positions, list(range(len(rows.ids))))


def by(layers: FusedLayers, model: Model, counts: tuple[int, ...]) -> torch.Tensor:
    logits = layers(rows_of(model, counts))
    assert logits is not None
    return logits


def rows_of(model: Model, counts: tuple[int, ...]) -> Rows:
    """Return the first tokens of sessions."""
    spans = [Span(KVCache(model.forward.layout, torch.device("cpu")), 0, n) for n in counts]
    for span in spans:
        span.kv.reserve(span.stop)
    ids = [5 + 7 * index % 200 for index in range(sum(counts))]
    return Rows(ids, model.forward.text_positions(spans), spans)


def test_layers_of_experts_are_not_rounded() -> None:
    """Each row of a draft would read others."""
    model = MORE_MODELS["mixtral"]()
    with pytest.raises(UnknownDecoderError, match="experts"):
        fused_of(model).rounded()


@pytest.mark.parametrize(
    ("num_turns", "per_row", "tokens"),
    [(1, 0.3, 3), (2, 0.3, 3), (1, 4.0, 0), (2, 4.0, 0)],
    ids=["one turn", "two turns", "rows cost", "rows of two turns cost"],
)
def test_as_many_tokens_are_guessed_as_gain_time(
    num_turns: int, per_row: float, tokens: int
) -> None:
    """Reading the weights takes 4 ms here; more rows take longer."""
    plan = plan_guesses(num_turns, GUESS_MS, lambda num_rows: 4 + per_row * num_rows)
    assert (plan.tokens if plan else 0) == tokens


def test_guesses_that_are_right_often_enough_gain_time() -> None:
    """The share of a plan is where both ways take as long."""
    plan = plan_guesses(1, GUESS_MS, lambda num_rows: 6 + 0.1 * num_rows)
    assert plan is not None
    taken = plan.tokens * GUESS_MS + 6 + 0.1 * (plan.tokens + 1)
    assert (1 + plan.tokens * plan.least_share) / taken == pytest.approx(1 / 6.1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[FusedLayers, Any, Any]:
    """Return what `find_guesser` receives of a small model, which it takes for a large one."""
    monkeypatch.setattr(guesser, "_LEAST_WEIGHTS", 0)
    model = MODELS["llama"]()
    return fused_of(model), model.forward.layout, model.forward.position_axes


def found(
    small: tuple[FusedLayers, Any, Any], caplog: pytest.LogCaptureFixture, *more: Any
) -> tuple[Any, str]:
    caplog.set_level(logging.INFO)
    return find_guesser(*small, *more), caplog.text


def planned(plan: GuessPlan | None) -> Callable[..., GuessPlan | None]:
    return lambda *_: plan


def test_a_model_guesses_where_that_gains_time(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For one turn and for two; the log says how many tokens."""
    monkeypatch.setattr(guesser, "plan_guesses", planned(GuessPlan(3, 0.4)))
    made, log = found(small, caplog)
    assert [made.plan(num) for num in (1, 2, 3)] == [GuessPlan(3, 0.4)] * 2 + [None]
    assert "guess next tokens: 3, 3 of 1 and of 2 replies at once" in log


def test_a_model_guesses_nothing_where_that_takes_as_long(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy of the weights is not kept."""
    monkeypatch.setattr(guesser, "plan_guesses", planned(None))
    made, log = found(small, caplog)
    assert made is None
    assert "as long as computing them" in log


def test_a_copy_takes_an_eighth_of_the_memory_at_most(
    small: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """That of a container, too."""
    made, log = found(small, caplog, limited_to(8 * small[0].num_weights - 8, tmp_path))
    assert made is None
    assert "weights in 8 bits would take" in log


def test_a_small_model_guesses_nothing() -> None:
    """Its weights are not what a step takes its time for."""
    assert find_guesser(SimpleNamespace(num_weights=1000), None, ()) is None  # type: ignore[arg-type]
