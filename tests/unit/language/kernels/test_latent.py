"""Compressed keys and values: absorbed or expanded, the attention is that of stock code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.harness import Harness, reference_reply
from tests.support.tiny.latent import deepseek_v3
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.kernels.attention import StepCache
from ts_stateful.language.kernels.latent import Latents, keep_latents
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model, accelerate

RANK, TURNED, PLAIN, VALUE, HEADS = 16, 4, 8, 6, 3
LAYOUT = KVLayout((LayerShape(1, RANK, TURNED),), torch.float32)
# Tokens before the step, and in it: rows after a long context, a chunk after one, a beginning.
SPANS = ((40, 1), (0, 9), (300, 2), (30, 30), (0, 1))
NUM_TOKENS = sum(count for _, count in SPANS)


class Attention(nn.Module):
    """The part of stock attention that expands; counts how often."""

    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim = RANK, TURNED, PLAIN, VALUE

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj: nn.Module = nn.Linear(RANK, HEADS * (PLAIN + VALUE), bias=False)
        self.expanded: list[int] = []

    def expand_kv(self, latents: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        length = latents.shape[2]
        self.expanded.append(length)
        both = self.kv_b_proj(latents).view(1, length, HEADS, -1).transpose(1, 2)
        plain, values = both.split([PLAIN, VALUE], dim=-1)
        return torch.cat([plain, turned.expand(-1, HEADS, -1, -1)], dim=-1), values


@pytest.fixture
def spans() -> Iterator[list[Span]]:
    torch.manual_seed(0)
    caches = [KVCache(LAYOUT, torch.device("cpu")) for _ in SPANS]
    for kv, (start, _) in zip(caches, SPANS, strict=True):
        kv.reserve(start)
        for part in kv.states:
            part.normal_()
    with torch.inference_mode():
        yield [Span(kv, *counts) for kv, counts in zip(caches, SPANS, strict=True)]


def _attend(module: Attention, spans: list[Span], scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the attention of all spans at once, and what stock code returns for each of them."""
    cache = StepCache(1)
    cache.begin(spans, flat=True)
    keep_latents(module)
    latents, turned = torch.randn(1, 1, NUM_TOKENS, RANK), torch.randn(1, 1, NUM_TOKENS, TURNED)
    query = torch.randn(1, HEADS, NUM_TOKENS, PLAIN + TURNED)
    keys, values = module.expand_kv(*cache.update(latents, turned, 0))
    assert keys is values
    assert isinstance(keys, Latents)
    found = keys.attend(query, Rule(scale), None)
    expected = []
    for span, part in zip(spans, query.split([s.num_tokens for s in spans], dim=2), strict=True):
        states = (part[None, :, : span.stop] for part in (span.kv.keys(0), span.kv.values(0)))
        mask = torch.ones(span.num_tokens, span.stop, dtype=torch.bool).tril(span.start)
        stock = nn.functional.scaled_dot_product_attention(
            part, *Attention.expand_kv(module, *states), mask, scale=scale
        )
        expected.append(stock.transpose(1, 2))
    return found, torch.cat(expected, dim=1)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_absorbed_attention_is_that_of_expanded_keys(
    spans: list[Span], scale: float | None
) -> None:
    """Rows and chunks side by side; only what is cheaper to expand is expanded."""
    module = Attention()
    found, expected = _attend(module, spans, scale)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert module.expanded[: -len(SPANS)] == [9, 60, 1]


def test_a_layer_that_is_not_plain_is_called(spans: list[Span]) -> None:
    """A quantised layer or an adapter computes more than a product, so latents are expanded by it."""

    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    module = Attention()
    module.kv_b_proj = Doubled(RANK, HEADS * (PLAIN + VALUE), bias=False)
    found, expected = _attend(module, spans, None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert module.expanded[: len(SPANS)] == [start + count for start, count in SPANS]


def test_kernels_leave_latents_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    """They would take latents for keys; replies stay those of stock code."""
    model = deepseek_v3()
    with caplog.at_level("INFO"):
        accelerate(model, HandlerConfig())
    assert model.forward.cache.kernels is None
    assert "kernels do not implement its rules" in caplog.text
    _answers_as_before(model)


def _answers_as_before(model: Model) -> None:
    harness = Harness(model)
    harness.open("s")
    reply: dict[str, Any] = harness.prompt("s", "What is it?", max_new_tokens=12)
    assert "error" not in reply
    reference_reply(model, harness, "s", 12)
