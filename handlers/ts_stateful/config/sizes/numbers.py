"""The numbers of a language model's `config.json`, which has other names for them in every family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["DTYPE_BYTES", "ModelUnknown", "Numbers"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_NAMES = {  # in configurations
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "intermediate": ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "vocabulary": ("vocab_size",),
    "window": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
}
# A vision-language checkpoint's `text_config` leaves out values that equal the default of its class in transformers.
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"layers": 32, "heads": 32, "hidden": 4096, "intermediate": 11008, "window": 2048},
    "mistral": {
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "hidden": 4096,
        "intermediate": 14336,
        "window": 131_072,
    },
    "qwen2": {
        "layers": 32,
        "heads": 32,
        "kv_heads": 32,
        "hidden": 4096,
        "intermediate": 22016,
        "window": 32_768,
    },
}


class ModelUnknown(ValueError):
    """A model's sizes are unknown; the message has the reason and the remedy."""


class Numbers:
    """The numbers of a text model's configuration, under any of their names."""

    def __init__(self, text: Mapping[str, Any], file: Path) -> None:
        self.text = text
        self._file = file
        self._kind = str(text.get("model_type"))

    def number(self, key: str) -> int | None:
        """Return a positive number under exactly this name."""
        value = self.text.get(key)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if is_count else None

    def first(self, *keys: str) -> int | None:
        """Return the first positive number under one of these names."""
        return next((number for key in keys if (number := self.number(key))), None)

    def find(self, what: str) -> int | None:
        """Return a number under any of its names, or the default of the class."""
        return self.first(*_NAMES[what]) or _DEFAULTS.get(self._kind, {}).get(what)

    def known(self, what: str) -> int:
        """Return a required number.

        Raises:
            ModelUnknown: it is missing.
        """
        value = self.find(what)
        if value is None:
            raise ModelUnknown(
                f"{self._file} has no {_NAMES[what][0]}, and the default of {self._kind} is unknown; write the"
                " whole configuration with transformers:"
                " AutoConfig.from_pretrained(model).to_json_file('config.json', use_diff=False)"
            )
        return value
