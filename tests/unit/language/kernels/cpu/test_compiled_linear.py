"""Compiled linear layers compute what torch's do, on the same parameters."""

from __future__ import annotations

import copy
import logging
import shutil
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.kernels import language_kernels
from ts_stateful.language.kernels.cpu import widening
from ts_stateful.language.kernels.cpu.compiled_linear import (
    CompiledLinear,
    _by_onednn,
    compile_linears,
)
from ts_stateful.language.kernels.cpu.packed_linear import has_operators
from ts_stateful.language.kernels.cpu.widening import Multiply, in_float32
from ts_stateful.language.kernels.decoder_layout import find_decoder

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 6, 11, 16, 20, 24, 25, 31, 32, 33, 63, 64, 100])
def test_outputs_are_those_of_torch(
    rows: int, bias: bool, threads: int, dtype: torch.dtype
) -> None:
    """Any number of rows, in any number of dimensions, outputs that fill no block."""
    torch.manual_seed(rows)
    linear = nn.Linear(224, 333, bias=bias).to(dtype)
    own = CompiledLinear(linear, language_kernels())
    inputs = torch.randn(rows, 1, 448).to(dtype)[..., ::2]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            expected, found = linear(inputs), own(inputs)
    finally:
        torch.set_num_threads(before)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    rounding = 1e-5 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 11, 24, 25, 33, 63, 64, 65, 100])
def test_weights_of_16_bits_are_multipliedin_float32(
    rows: int, bias: bool, dtype: torch.dtype
) -> None:
    """Nothing but the weights is rounded, and these were representable, very small ones too; biases stay as they are."""
    torch.manual_seed(rows)
    linear = nn.Linear(224, 333, bias=bias)
    linear.weight.data[::2] *= 1e-4
    linear.weight.data = linear.weight.data.to(dtype).float()
    own = CompiledLinear(linear, language_kernels(), weights=dtype)
    inputs = torch.randn(rows, 224)
    with torch.inference_mode():
        expected, found = linear(inputs), own(inputs)
    assert own.weight.dtype is dtype
    assert own.bias is linear.bias
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own(inputs), expected)  # with gradients torch computes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("way", [_by_onednn, in_float32(nn.functional.linear)])
def test_many_rows_are_multiplied_in_any_way(
    way: Multiply, bias: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest one is chosen by time, so each must be right, also for weights that are converted in several blocks."""
    if way is _by_onednn and not has_operators(dtype):
        pytest.skip("oneDNN does not multiply these numbers on this processor")
    monkeypatch.setattr(widening, "_BLOCK", 224 * 50)
    torch.manual_seed(1)
    linear = nn.Linear(224, 333, bias=bias).to(dtype)
    inputs = torch.randn(70, 224).to(dtype)
    with torch.inference_mode():
        expected, found = linear(inputs), CompiledLinear(linear, language_kernels(), way)(inputs)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    rounding = 1e-5 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_log_has_the_times_of_all_ways(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Of bfloat16, float32 is one of them."""
    caplog.set_level(logging.INFO)
    compile_linears(nn.ModuleList([nn.Linear(512, 512).to(dtype)]), language_kernels())
    line = caplog.messages[-1]
    assert f"multiplies many rows of {dtype}" in line
    assert "torch's usual library" in line
    assert ("oneDNN" in line) == has_operators(dtype)
    assert (", float32 " in line) == (dtype is torch.bfloat16)


@torch.inference_mode()
def test_threads_are_spread_before_torch_multiplies() -> None:
    """Its caller may have woken up on the processor of a helper."""
    own, calls = CompiledLinear(nn.Linear(16, 4), language_kernels()), list[int]()
    own._functions = own._functions._replace(spread_threads=calls.append)
    own(torch.randn(65, 16))
    assert calls == [torch.get_num_threads()]


def test_gradients_are_torchs() -> None:
    """With gradients, torch computes."""
    own = CompiledLinear(nn.Linear(16, 4), language_kernels())
    inputs = torch.randn(2, 16)
    own(inputs).sum().backward()
    assert own.weight.grad is not None
    torch.testing.assert_close(own.weight.grad, inputs.sum(0).expand(4, 16))


@pytest.mark.parametrize("tied", [False, True])
def test_a_network_keeps_its_parameters(tied: bool) -> None:
    """Layers are replaced, weights are the same objects under the same names, and the network is still recognized."""
    torch.manual_seed(1)
    network = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()
    stock = copy.deepcopy(network)
    before = dict(network.named_parameters())
    assert (
        compile_linears(network, language_kernels()) == 2 * 5 + 1
    )  # keys and values are too small
    after = dict(network.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert (network.lm_head.weight is network.get_input_embeddings().weight) == tied
    assert type(network.lm_head) is CompiledLinear
    assert find_decoder(network).head is network.lm_head
    ids = torch.arange(21).reshape(3, 7)
    with torch.inference_mode():
        torch.testing.assert_close(
            network(input_ids=ids).logits, stock(input_ids=ids).logits, rtol=1e-4, atol=1e-4
        )


def test_what_cannot_be_read_stays() -> None:
    """Other dtypes, and inputs that do not fill a vector, of which bfloat16 needs twice as many."""
    others = (nn.Linear(512, 512).half(), nn.Linear(1000, 512), nn.Linear(1008, 512).bfloat16())
    network = nn.ModuleList(others)
    assert compile_linears(network, language_kernels()) == 0
    assert all(type(module) is nn.Linear for module in network)


class _Wrong:
    """A library that computes nothing."""

    def __getattr__(self, name: str) -> Any:
        def function(*_: object) -> int:
            return 64 if name.startswith("most_") else 0

        self.__dict__[name] = function
        return function


def test_a_layer_that_differs_stays(caplog: pytest.LogCaptureFixture) -> None:
    """Every shape must agree with torch before it is used."""
    network = nn.ModuleList([nn.Linear(512, 512), nn.Linear(512, 512)])
    wrong: Any = _Wrong()
    assert compile_linears(network, wrong) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
