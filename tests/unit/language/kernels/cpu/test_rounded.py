"""Layers in 8 bits compute with the rounded weights."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from tests.support.kernels import language_kernels
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers
from ts_stateful.language.kernels.cpu.rounded import Rounded
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.network.load import Model

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def fused_of(model: Model) -> FusedLayers:
    forward = model.forward
    decoder = find_decoder(forward.network)
    return FusedLayers(decoder, forward.layout, forward.windows, language_kernels())


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
