"""Indexes choose the same tokens for many sessions in one pass as for each of them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.harness import Harness, reference_reply
from tests.support.tiny.latent import deepseek_v32, glm_moe_dsa
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.kernels import states
from ts_stateful.language.kernels.indexes import PerSession, narrow
from ts_stateful.language.kernels.rule import Masks
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model, accelerate

# Tokens of three sessions in two steps: rows and chunks, shorter and longer than what an index chooses.
STEPS = ((40, 1), (3, 17), (25, 6))
CHOSEN = 8

Build = Callable[[], Model]


def _ids(session: int, count: int) -> list[int]:
    return [(31 * session + 17 * position) % 512 for position in range(count)]


def _recorded(model: Model) -> tuple[list[Any], list[Any]]:
    """Record what the first and the last index return."""
    indexes = [m for name, m in model.network.named_modules() if name.endswith(".indexer")]
    made: tuple[list[Any], list[Any]] = ([], [])
    for index, results in zip((indexes[0], indexes[-1]), made, strict=True):
        index.register_forward_hook(lambda *args, results=results: results.append(args[2]))
    return made


def _sets(chosen: Tensor, start: int) -> list[set[int]]:
    """Return what each token of `(1, tokens, count)` attends to, of those up to itself."""
    return [
        {int(key) for key in row if key <= start + place} for place, row in enumerate(chosen[0])
    ]


@pytest.mark.parametrize("make", [deepseek_v32, glm_moe_dsa])
@torch.inference_mode()
def test_the_choice_is_that_of_stock_code_on_the_whole_transcript(make: Build) -> None:
    """Of every token, in the first and the last layer that chooses; most tokens leave some out."""
    model = make()
    made = _recorded(model)
    caches = [model.new_kv() for _ in STEPS]
    for step in range(2):
        spans = [Span(kv, kv.length, n[step]) for kv, n in zip(caches, STEPS, strict=True)]
        ids = [_ids(i, span.stop)[span.start :] for i, span in enumerate(spans)]
        model.forward([token for part in ids for token in part], spans, None, [0])
    found = [[_sets(part, 0) for part in results[0].parts] for results in made]
    for results, sets in zip(made, found, strict=True):
        assert isinstance(results[1], PerSession)
        for index, part in enumerate(results[1].parts):
            sets[index] += _sets(part, STEPS[index][0])
    for results in made:
        results.clear()
    model.network.config._attn_implementation = model.forward.stock_attention
    for index, counts in enumerate(STEPS):
        model.network(input_ids=torch.tensor([_ids(index, sum(counts))]), use_cache=False)
        for results, sets in zip(made, found, strict=True):
            assert sets[index] == _sets(results[-1], 0)
    assert max(len(each) for each in found[0][0]) == CHOSEN


def test_what_is_not_chosen_is_left_out() -> None:
    """Rows read the chosen keys alone; chunks get a mask; where all are chosen nothing changes."""
    keys, values = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 3)
    few, of_them, none = narrow(torch.tensor([[[5, 0, 2]]]), keys, values, None)
    assert none is None
    assert torch.equal(few, keys[:, :, [0, 2, 5]])
    assert torch.equal(of_them, values[:, :, [0, 2, 5]])
    mask = torch.ones(2, 6, dtype=torch.bool).tril(4)
    same, _, found = narrow(torch.tensor([[[5, 0], [5, 3]]]), keys, values, mask)
    assert same is keys
    assert found is not None
    assert found.int().tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 1]]
    assert narrow(torch.arange(6).expand(1, 2, 6), keys, values, mask) == (keys, values, mask)


def test_operations_are_applied_to_each_session() -> None:
    """Torch's functions get the tokens of that session; the longest has the shape."""
    kv = KVCache(KVLayout((LayerShape(1, 4, 4),), torch.float32), torch.device("cpu"))
    masks = Masks([Span(kv, 0, 2), Span(kv, 3, 1)])
    tensors: Any = PerSession([torch.ones(1, 2, 2), torch.ones(1, 1, 4)], masks)
    assert tensors.shape == (1, 1, 4)
    weights = torch.tensor([[[1.0], [2.0], [3.0]]])
    product: Any = torch.mul(weights, tensors) * 2
    assert [part.tolist() for part in product.parts] == [[[[2, 2], [4, 4]]], [[[6, 6, 6, 6]]]]
    with pytest.raises(AttributeError):
        tensors.no_method_of_tensors()


def test_an_attention_that_ignores_the_choice_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples are shorter than what published models choose, so indexes choose fewer when a model is loaded."""
    monkeypatch.setattr(states, "narrow", lambda _, *rest: rest)
    model = deepseek_v32()
    assert not model.forward.flat
    assert "logits differ" in caplog.text
    for name, index in model.network.named_modules():
        assert not name.endswith(".indexer") or index.index_topk == CHOSEN
    _answers_as_stock_code(model)  # in a pass for each session


@pytest.mark.parametrize("make", [deepseek_v32, glm_moe_dsa])
def test_kernels_leave_indexes_to_torch(make: Build) -> None:
    """The replies stay those of stock code."""
    model = make()
    accelerate(model, HandlerConfig())
    assert model.forward.cache.kernels is None
    _answers_as_stock_code(model)


def _answers_as_stock_code(model: Model) -> None:
    harness = Harness(model)
    for session_id in "ab":
        harness.open(session_id)
        harness.prompt(session_id, "What is it? " * 4, max_new_tokens=12)
        reference_reply(model, harness, session_id, 12)
