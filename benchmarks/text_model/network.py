"""The tokenizer and the network before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.model import BEGIN, END, PAD, SPECIAL, TEMPLATE, UNKNOWN

__all__ = ["build_network", "build_tokenizer"]

VOCABULARY: Final = 1536
CONTEXT: Final = 2048
WIDTH, LAYERS, HEADS, INNER = 256, 3, 4, 640
_HEAD: Final = WIDTH // HEADS
_PAIRS: Final = _HEAD // 2
_THETA: Final = 500_000.0
_SPREAD: Final = 0.03
_STRONG: Final = 6.0
_QUIET: Final = 0.1
_MATCH: Final = (4.0, 2.5)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of byte pairs, trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def build_network(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a Llama whose first layers look for what followed the last token before.

    Training finds such heads by itself, but late; these here are crude, and it sharpens them.
    """
    tokens = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=CONTEXT,
            initializer_range=_SPREAD,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": _THETA},
            **tokens,
        )
    )
    network.generation_config = GenerationConfig(do_sample=False, **tokens)
    with torch.no_grad():
        network.model.embed_tokens.weight[:, 0] = 3 * _SPREAD  # the same for each token
        _hint(network)
    return network


def _hint(network: LlamaForCausalLM) -> None:
    """Let two heads of layer 0 look one and two tokens back, and layer 1 at what followed two tokens like the last ones."""
    for layer in network.model.layers:
        layer.mlp.down_proj.weight *= _QUIET
        layer.self_attn.o_proj.weight *= _QUIET
    first, second = (network.model.layers[number].self_attn for number in (0, 1))
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0]
    codes = basis.split(_HEAD)  # of a token here, here again, one before, two before
    now, before = codes[0], codes[2:]
    for head, code in enumerate(before):
        rows = slice(head * _HEAD, (head + 1) * _HEAD)
        first.q_proj.weight[rows] = 0
        first.k_proj.weight[rows] = 0
        first.q_proj.weight[rows, 0], first.k_proj.weight[rows, 0] = _look_back(head + 1)
        first.v_proj.weight[rows] = now
        first.o_proj.weight[:, rows] = 2 * _SPREAD * code.T
    slow = _slow()
    size = _HEAD // HEADS
    for head in range(HEADS):
        rows = slice(head * _HEAD, (head + 1) * _HEAD)
        part = slice(head * size, (head + 1) * size)
        query, key = torch.zeros(2, _HEAD, WIDTH)
        query[slow[:size]], key[slow[:size]] = _MATCH[0] * now[part], _MATCH[0] * before[0][part]
        query[slow[size:]], key[slow[size:]] = (
            _MATCH[1] * before[0][part],
            _MATCH[1] * before[1][part],
        )
        second.q_proj.weight[rows], second.k_proj.weight[rows] = query, key
        second.v_proj.weight[rows] = codes[head]
        second.o_proj.weight[:, rows] = _STRONG * _SPREAD * codes[head].T


def _look_back(distance: int) -> tuple[Tensor, Tensor]:
    """Return what a query and a key have of the constant part, so that they agree most at a distance in tokens."""
    frequencies = _THETA ** (-torch.arange(_PAIRS) / _PAIRS)
    size = torch.where(frequencies > 0.05, 2.0, 0.0)
    turned = distance * frequencies
    return torch.cat([size, torch.zeros(_PAIRS)]), torch.cat(
        [size * turned.cos(), size * turned.sin()]
    )


def _slow() -> list[int]:
    """Return the places in a head, two quarters of it, that turn least over a context of some hundred tokens."""
    quarter = _HEAD // 4
    return [*range(_PAIRS - quarter, _PAIRS), *range(_HEAD - quarter, _HEAD)]
