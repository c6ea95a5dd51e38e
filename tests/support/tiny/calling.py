"""A model that calls a tool, then speaks of its result: real layers, with weights that were written down, not trained.

Each token is followed by one certain token. The template ends a prompt in one way before a call and in another one after a
result, so the same chain of tokens does both.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ts_stateful.language.network.load import Model, build_model

__all__ = ["ANSWER", "ARGUMENTS", "REASONING", "TOOL", "calling"]

TOOL: dict[str, Any] = {
    "name": "get_color",
    "description": "Look up the color of a shape.",
    "parameters": {
        "type": "object",
        "properties": {"shape": {"enum": ["circle", "square"]}},
        "required": ["shape"],
        "additionalProperties": False,
    },
}
ARGUMENTS = {"shape": "circle"}
REASONING = "I have to look."
ANSWER = "It is red."

_CALL = json.dumps({"name": TOOL["name"], "arguments": ARGUMENTS})
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
# Some are cut within a word, as tokens are.
_BEFORE = (
    "\n",
    "<think>",
    "I have to ",
    "look.",
    "</think>",
    "<tool_call>",
    _CALL[:30],
    _CALL[30:],
)
_AFTER = ("\t", "It is r", "ed.", "<|im_end|>")
_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{{ '\t' if loop.previtem is defined and loop.previtem.role == 'tool' else '\n' }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\t' if messages[-1].role == 'tool' else '\n' }}{% endif %}"
)
_RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}


def _tokenizer() -> PreTrainedTokenizerFast:
    """Train one to which each piece is a token, and other text is bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = [piece for piece in (*_BEFORE, *_AFTER) if "<" not in piece]
    made.train_from_iterator(pieces * 2, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in _MARKS])
    tokenizer.chat_template = _TEMPLATE
    tokenizer.response_template = _RESPONSE
    return tokenizer


def calling() -> Model:
    """Build it: with `get_color` it calls that about the circle; with the result it says that it is red."""
    tokenizer = _tokenizer()
    size = 512
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=size,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=8,
            num_key_value_heads=1,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=2,
        )
    ).eval()
    chain = [*_BEFORE, "</tool_call>", "<|im_end|>"]
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        network.model.embed_tokens.weight.copy_(torch.eye(size))
        for said in (chain, _AFTER):
            for before, after in itertools.pairwise(tokenizer.encode("".join(said))):
                network.lm_head.weight[after, before] = 1.0
    return build_model("calling", network, tokenizer)
