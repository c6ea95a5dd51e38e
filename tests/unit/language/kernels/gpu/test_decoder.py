"""Steps of few rows by fused Triton kernels are the model's; on a CPU through Triton's interpreter."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from tests.support import tiny
from tests.support.plain_capturer import PlainCapturer
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.kernels.gpu import fused_rows
from ts_stateful.language.kernels.gpu.cuda_graphs import RowInputs
from ts_stateful.language.kernels.gpu.fused_rows import difference, find_fused_rows
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.network.load import Model

pytest.importorskip("triton")
from ts_stateful.language.kernels.gpu import cuda_graphs, decoder
from ts_stateful.language.kernels.gpu.decoder import MOST_ROWS, FusedDecoder, _tiles
from ts_stateful.language.kernels.gpu.triton import TritonKernels

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled for the GPU; test_gpu.py has replies"
)

# Families whose layers differ: grouped heads, norms of heads, norms after both parts, caps and windows, neighbors that rotate
# together, joined projections, biases, positions of three axes, a residual's factor, layers without positions.
FAMILIES = (
    *("llama", "qwen3", "gemma2", "gemma3", "glm4", "phi3", "qwen2_vl", "granite", "smollm3"),
    "exaone4",
)

_FEW = (3, 1), (2, 1)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a millisecond for a program; there are few if each computes many outputs of few tokens."""

    def tiles(num_rows: int, num_outputs: int, num_inputs: int, *_: int) -> dict[str, int]:
        found = _tiles(num_rows, num_outputs, num_inputs, 1, 2**16)
        return {**found, "OUTPUTS": 2048, "INPUTS": 32}

    monkeypatch.setattr(decoder, "_tiles", tiles)
    monkeypatch.setattr(fused_rows, "_COUNTS", _FEW)
    # The kernels of attention have tests of their own.
    monkeypatch.setattr("ts_stateful.language.network.forward._KERNEL_COUNTS", _FEW)


def made(name: str) -> Model:
    model = {**tiny.MODELS, **tiny.MORE_MODELS}[name]()
    assert model.forward.use_kernels(TritonKernels(model.forward.layout, 4)) == ""
    return model


def fused_of(model: Model) -> FusedDecoder:
    forward = model.forward
    kernels = forward.cache.kernels
    assert isinstance(kernels, TritonKernels)
    return FusedDecoder(find_decoder(model.network), forward.layout, forward.windows, kernels)


@pytest.mark.parametrize("name", FAMILIES)
def test_fused_steps_are_the_models(name: str) -> None:
    """Logits and the states written, of one row, of several, and of sessions of many lengths."""
    model = made(name)
    assert difference(model.forward, fused_of(model)) == ""


def test_projections_are_joined_without_changing_the_network() -> None:
    """Its own passes give what they gave, and read the joined weights."""
    model, stock = made("llama"), tiny.MODELS["llama"]()
    fused = fused_of(model)
    ids = [5, 6, 7, 8]
    found, expected = (
        each.forward(ids, [Span(each.new_kv(), 0, 4)], None, [3]) for each in (model, stock)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    attention = model.network.model.layers[0].self_attn
    joined = fused._layers[0].qkv.weight
    assert attention.q_proj.weight.data_ptr() == joined.data_ptr()
    assert torch.equal(attention.v_proj.weight, joined[-len(attention.v_proj.weight) :])


def test_captured_steps_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's tokens are rows, and so is the next token."""
    monkeypatch.setattr(cuda_graphs, "_SIZES", (2,))
    model, stock, capturer = made("llama"), tiny.MODELS["llama"](), PlainCapturer()
    assert model.forward.capture(capturer, fused=True) == [2]
    assert model.forward._fused is not None
    before, logits = capturer.num_replays, []
    for forward in (model.forward, stock.forward):
        kv = forward.new_kv()
        for ids in ([5, 6], [8]):
            found = forward(ids, [Span(kv, kv.length, len(ids))], None, [len(ids) - 1])
        logits.append(found)
    assert capturer.num_replays == before + 2
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_more_rows_are_left_to_the_model() -> None:
    """The result is None."""
    model = made("llama")
    inputs = RowInputs(MOST_ROWS + 1, len(model.forward.layout.layers), (1,), torch.device("cpu"))
    assert fused_of(model)(inputs) is None


@pytest.mark.parametrize("name", ["gpt_oss", "olmo2", "mixtral", "ministral3"])
def test_layers_that_are_not_supported_are_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Experts, norms of all heads and queries that grow are stock code's, which is no reason to warn."""
    model = made(name)
    with caplog.at_level(logging.INFO):
        assert find_fused_rows(model.forward) is None
    (record,) = [r for r in caplog.records if "decoder layers" in r.getMessage()]
    assert record.levelno == logging.INFO
    assert "not supported on a GPU" in record.getMessage()


def test_float16_is_left_to_the_model() -> None:
    """Its range is too small for hidden states that are not yet normalized."""
    model = made("llama")
    layout = model.forward.layout
    half = type(layout)(layout.layers, torch.float16)
    kernels = TritonKernels(half, 4)
    with pytest.raises(UnknownDecoderError, match=r"float16 is not supported"):
        FusedDecoder(find_decoder(model.network), half, model.forward.windows, kernels)


def _scaled(found: Tensor) -> Tensor:
    return 1.5 * found


def test_kernels_that_differ_are_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the reason."""
    model = made("llama")
    call = FusedDecoder.__call__

    def wrong(self: FusedDecoder, inputs: RowInputs) -> Tensor | None:
        found = call(self, inputs)
        return None if found is None else _scaled(found)

    monkeypatch.setattr(FusedDecoder, "__call__", wrong)
    assert find_fused_rows(model.forward) is None
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "logits: logits differ" in record.getMessage()


def test_states_in_wrong_places_are_found() -> None:
    """Also where the logits of the step are right."""
    model = made("llama")
    fused = fused_of(model)

    def wrong(inputs: RowInputs) -> Tensor | None:
        logits = fused(inputs)
        for kv in kept:
            kv.keys(1)[:, kv.length] = 0.0
        return logits

    kept: list[KVCache] = []
    begin = RowInputs.fill

    def fill(self: RowInputs, rows: Rows) -> None:
        kept[:] = [span.kv for span in rows.spans]
        begin(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowInputs, "fill", fill)
        assert "states: logits differ" in difference(model.forward, wrong)


@pytest.mark.parametrize("shared_bytes", [48 * 2**10, 99 * 2**10, 163 * 2**10, 227 * 2**10])
@pytest.mark.parametrize("rows", [2, 8, 32])
def test_tiles_fit_into_shared_memory(rows: int, shared_bytes: int) -> None:
    """Of every stage that is read ahead; a single stage needs none."""
    for outputs, weights in ((4096, 1), (12288, 1), (11008, 2)):
        tiles = _tiles(rows, outputs, 4096, weights, shared_bytes // 2)
        stage = 2 * (weights * tiles["OUTPUTS"] + tiles["ROWS"]) * tiles["INPUTS"]
        assert tiles["num_stages"] == 1 or tiles["num_stages"] * stage <= shared_bytes
