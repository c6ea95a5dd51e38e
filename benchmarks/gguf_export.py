"""The text model as a GGUF file in its own dtype, for llama.cpp.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from gguf.quants import quantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from benchmarks.gguf_names import permuted, target_of
from benchmarks.model import NUM_SPECIAL

__all__ = ["export"]


def export(checkpoint: Path, path: Path) -> Path:
    """Write the Llama in the folder `checkpoint` to `path`."""
    config = AutoConfig.from_pretrained(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("benchmark")
    is_half = config.dtype is torch.bfloat16
    file_type = gguf.LlamaFileType.MOSTLY_BF16 if is_half else gguf.LlamaFileType.ALL_F32
    writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_vocabulary(writer, checkpoint)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in weights.items():
        target = target_of(name)
        kind = target.split(".")[-2]
        tensor = permuted(weight, heads[kind]) if kind in heads else weight
        # llama.cpp adds and multiplies vectors in float32 alone.
        is_rounded = is_half and weight.dim() > 1
        stored = gguf.GGMLQuantizationType.BF16 if is_rounded else gguf.GGMLQuantizationType.F32
        data = quantize(tensor.float().contiguous().numpy(), stored)
        writer.add_tensor(target, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, checkpoint: Path) -> None:
    """Add words as SentencePiece's pieces: requests carry ids, and only replies become text."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    kinds = [control if number < NUM_SPECIAL else normal for number in range(len(pieces))]
    kinds[tokenizer.unk_token_id] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
