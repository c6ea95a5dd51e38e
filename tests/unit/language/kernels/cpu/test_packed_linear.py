"""Packed linear layers compute what the stock ones compute, and can be taken back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ts_stateful.language.kernels.cpu.packed_linear import (
    PackedLinear,
    can_pack,
    pack,
    pack_towers,
    unpack,
)

torch.set_num_threads(1)  # these models are too small to gain from more

CPU = torch.device("cpu")
DTYPES = [
    pytest.param(
        dtype, marks=pytest.mark.skipif(not can_pack(CPU, dtype), reason="not on this processor")
    )
    for dtype in (torch.float32, torch.bfloat16)
]
ON_FLOAT32 = pytest.mark.skipif(
    not can_pack(CPU, torch.float32), reason="packing is of no use on this processor"
)
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
# Queries, outputs and the three of the feed-forward part in each layer; keys and values are too small.
NUM_WORTHWHILE = 2 * 5


def llama(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()


def logits(network: PreTrainedModel, rows: int = 1) -> torch.Tensor:
    ids = torch.arange(7 * rows).reshape(rows, 7) % SIZES["vocab_size"]
    with torch.inference_mode():
        found: torch.Tensor = network(input_ids=ids).logits
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 33, 260])
def test_a_packed_layer_computes_the_same(dtype: torch.dtype, bias: bool, rows: int) -> None:
    """Any number of rows, in any number of dimensions, comes out as the stock layer gives it."""
    torch.manual_seed(rows)
    linear = nn.Linear(200, 333, bias=bias).to(dtype)
    packed = PackedLinear(linear)
    inputs = torch.randn(rows, 1, 400, dtype=dtype)[..., ::2]
    with torch.inference_mode():
        expected, found = linear(inputs), packed(inputs)
    assert found.shape == expected.shape
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@ON_FLOAT32
def test_rows_are_independent() -> None:
    """A row gives the same bits in any batch."""
    packed = PackedLinear(nn.Linear(512, 640))
    inputs = torch.randn(32, 512)
    with torch.inference_mode():
        together = packed(inputs)
        for rows in (2, 5, 16, 31):
            assert torch.equal(packed(inputs[:rows]), together[:rows])


@ON_FLOAT32
def test_towers_alone_are_packed() -> None:
    """What sees and its projector are packed and give the same features; the text part and bfloat16 stay plain."""
    torch.manual_seed(1)
    sizes = {key: SIZES[key] for key in SIZES if key not in ("vocab_size", "num_key_value_heads")}
    vision = CLIPVisionConfig(**sizes, image_size=56, patch_size=14)
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SIZES))
    network = LlavaForConditionalGeneration(config).eval()
    stock, pixels = copy.deepcopy(network), torch.randn(2, 3, 56, 56)
    assert pack_towers(copy.deepcopy(network).bfloat16()) == 0
    assert pack_towers(network) == 2 * 6 + 2
    assert not any(
        isinstance(module, PackedLinear) for module in network.model.language_model.modules()
    )
    with torch.inference_mode():
        expected, found = (n.get_image_features(pixels).pooler_output for n in (stock, network))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)


@ON_FLOAT32
def test_a_text_model_has_no_towers() -> None:
    """It is not taken for one itself."""
    assert pack_towers(llama(tied=False)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_network_is_packed_and_unpacked(dtype: torch.dtype, tied: bool) -> None:
    """The packed network gives the same logits, counts the same weights, and comes back to the last bit."""
    network = llama(tied=tied).to(dtype)
    stock = copy.deepcopy(network)
    assert pack(network) == NUM_WORTHWHILE + 1
    assert isinstance(network.lm_head, PackedLinear)
    assert network.dtype == dtype
    assert network.device == CPU
    shared = network.lm_head.weight.numel() if tied else 0
    assert network.num_parameters() == stock.num_parameters() + shared
    tolerance = 1e-5 if dtype is torch.float32 else 2e-1
    torch.testing.assert_close(logits(network, 3), logits(stock, 3), rtol=tolerance, atol=tolerance)
    unpack(network)
    assert (network.lm_head.weight is network.get_input_embeddings().weight) == tied
    assert [type(module) for module in network.modules()] == [
        type(module) for module in stock.modules()
    ]
    assert stock.state_dict().keys() == network.state_dict().keys()
    for name, tensor in stock.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert torch.equal(logits(network), logits(stock))


@ON_FLOAT32
def test_the_plain_weight_is_given_up() -> None:
    """A weight that nothing else shares is not held twice."""
    network = llama(tied=False)
    pack(network)
    held = {name: parameter.is_mkldnn for name, parameter in network.named_parameters()}
    assert held["model.layers.0.mlp.up_proj.weight"]
    assert not held["model.embed_tokens.weight"]


@ON_FLOAT32
def test_generation_is_that_of_the_stock_network() -> None:
    """Greedy tokens do not change, biases included."""
    torch.manual_seed(2)
    network = Qwen2ForCausalLM(Qwen2Config(**SIZES, bos_token_id=0, eos_token_id=1)).eval()
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    ids = torch.arange(2, 14).reshape(1, -1)
    expected = network.generate(ids, **options)
    pack(network)
    assert network.generate(ids, **options).tolist() == expected.tolist()


class _Own(nn.Linear):
    """A user's layer."""


@ON_FLOAT32
def test_what_is_not_a_plain_large_linear_layer_stays() -> None:
    """Subclasses, layers with hooks and small ones are left as they are; a layer in two places stays one."""
    shared = nn.Linear(256, 256)
    hooked = nn.Linear(256, 256)
    hooked.register_forward_hook(lambda *_: None)
    network = nn.ModuleDict(
        {
            "first": shared,
            "second": shared,
            "hooked": hooked,
            "own": _Own(256, 256),
            "small": nn.Linear(255, 256),
        }
    )
    assert pack(network) == 1
    assert isinstance(network["first"], PackedLinear)
    assert network["first"] is network["second"]
    kinds = [type(network[name]) for name in ("hooked", "own", "small")]
    assert kinds == [nn.Linear, _Own, nn.Linear]


@pytest.mark.parametrize(
    ("device", "dtype"), [("cuda", torch.float32), ("cpu", torch.float16), ("cpu", torch.float64)]
)
def test_only_cpus_pack(device: str, dtype: torch.dtype) -> None:
    """Other devices, and dtypes that the operators do not support, keep plain layers."""
    assert not can_pack(torch.device(device), dtype)
