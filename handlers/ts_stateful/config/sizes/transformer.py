"""What a token of a language model takes, read from its `config.json`.

Owns the names under which configurations tell their sizes, the defaults that some of them leave out, and an estimate of the
weights. The engine finds out the same by running the model; here nothing is loaded, and neither torch nor transformers is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ts_stateful.config.sizes.quantities import show_count

__all__ = ["DTYPE_BYTES", "ModelUnknown", "TransformerSize", "read_transformer"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_TEXT = ("text_config", "llm_config", "language_config")
_NAMES = {  # what configurations call it
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "intermediate": ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "vocabulary": ("vocab_size",),
    "window": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
}
# Vision-language checkpoints leave out of their `text_config` what equals the default of its class in transformers.
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
# Positions of such models change beyond the original window.
_GROWING_ROPE = {"dynamic", "longrope", "su"}


class ModelUnknown(ValueError):
    """A model's sizes cannot be told; the message says why, and what to give instead."""


@dataclass(frozen=True)
class TransformerSize:
    """The sizes of a model. `window` is in tokens, `image_tokens` those of one image (0: it sees none; None: it varies).

    `weights` counts numbers, by its files where they are there and else estimated from its dimensions (`estimated`).
    """

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    hidden: int
    feature_maps: int
    window: int | None
    image_tokens: int | None
    weights: int
    estimated: bool

    @property
    def sees(self) -> bool:
        """Whether it takes images."""
        return self.image_tokens != 0

    def token_bytes(self, dtype: str) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return self.layers * self.kv_heads * (self.key_dim + self.value_dim) * DTYPE_BYTES[dtype]

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights."""
        return self.weights * DTYPE_BYTES[dtype]

    def image_bytes(self, num_tokens: int, dtype: str) -> int:
        """Bytes of the embeddings of images of so many tokens."""
        return num_tokens * self.hidden * self.feature_maps * DTYPE_BYTES[dtype]

    def arithmetic(self, dtype: str) -> str:
        """How `token_bytes` comes about."""
        return (
            f"{self.layers} layers x {self.kv_heads} KV heads x ({self.key_dim} + {self.value_dim})"
            f" x {DTYPE_BYTES[dtype]} bytes ({dtype}) = {show_count(self.token_bytes(dtype))} bytes a token"
        )


def read_transformer(path: Path) -> TransformerSize:
    """The sizes of the model in a folder, or of the one that a `config.json` describes.

    Raises:
        ModelUnknown: there is no such file, or it does not tell.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelUnknown(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ModelUnknown(f"{file} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ModelUnknown(f"{file} is no configuration of a model")
    text = next((document[key] for key in _TEXT if isinstance(document.get(key), dict)), document)
    return _size(document, text, file)


def _size(document: Mapping[str, Any], text: Mapping[str, Any], file: Path) -> TransformerSize:
    sizes = _Sizes(text, file)
    vision = document.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}
    maps = vision.get("deepstack_visual_indexes")
    told = [config.get(key) for config in (text, document) for key in ("dtype", "torch_dtype")]
    stored = next((name for name in told if isinstance(name, str) and name in DTYPE_BYTES), None)
    # Where nothing tells, two bytes a number: to count too many weights is the safe side.
    counted = _stored_bytes(file.parent) // DTYPE_BYTES[stored or "bfloat16"]
    heads = _heads(sizes)
    return TransformerSize(
        # Some of the last layers may use the keys and values of earlier ones.
        layers=max(1, sizes.known("layers") - (sizes.number("num_kv_shared_layers") or 0)),
        kv_heads=heads.kv_heads,
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
        hidden=sizes.known("hidden"),
        feature_maps=1 + len(maps if isinstance(maps, list) else ()),
        window=_window(sizes),
        image_tokens=_image_tokens(document),
        weights=counted or _text_weights(sizes, heads) + _vision_weights(_Sizes(vision, file)),
        estimated=not counted,
    )


def _heads(sizes: _Sizes) -> _Heads:
    heads = sizes.known("heads")
    rank = sizes.number("kv_lora_rank")
    if rank is not None:  # latent attention keeps what keys and values are made of
        return _Heads(heads, 1, rank, sizes.number("qk_rope_head_dim") or 0)
    dim = sizes.number("head_dim") or max(1, sizes.known("hidden") // heads)
    single = sizes.text.get("multi_query") is True and not sizes.text.get(
        "new_decoder_architecture"
    )
    return _Heads(heads, 1 if single else sizes.find("kv_heads") or heads, dim, dim)


def _text_weights(sizes: _Sizes, heads: _Heads) -> int:
    """An estimate: projections, a gated feed-forward part of all experts, and the tables of the vocabulary."""
    width = sizes.known("hidden")
    attention = (heads.num + heads.kv_heads) * (heads.key_dim + heads.value_dim)
    forward = 3 * (sizes.find("intermediate") or 4 * width) * (sizes.find("experts") or 1)
    tables = 1 if sizes.text.get("tie_word_embeddings") else 2
    return width * (
        sizes.known("layers") * (attention + forward) + tables * (sizes.find("vocabulary") or 0)
    )


def _vision_weights(sizes: _Sizes) -> int:
    width = sizes.find("hidden") or sizes.number("embed_dim") or 0
    layers = sizes.find("layers") or sizes.number("depth") or 0
    return layers * width * (4 * width + 2 * (sizes.find("intermediate") or 4 * width))


class _Heads(NamedTuple):
    num: int
    kv_heads: int
    key_dim: int
    value_dim: int


class _Sizes:
    """The numbers of a text model's configuration, under whatever name it has them."""

    def __init__(self, text: Mapping[str, Any], file: Path) -> None:
        self.text = text
        self._file = file
        self._kind = str(text.get("model_type"))

    def number(self, key: str) -> int | None:
        """A positive number under exactly this name."""
        value = self.text.get(key)
        return (
            value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
        )

    def find(self, what: str) -> int | None:
        """A number under any of its names, or the default of the class."""
        found = (number for key in _NAMES[what] if (number := self.number(key)))
        return next(found, _DEFAULTS.get(self._kind, {}).get(what))

    def known(self, what: str) -> int:
        """As `find`, where nothing can be told without it.

        Raises:
            ModelUnknown: it is not there.
        """
        value = self.find(what)
        if value is None:
            raise ModelUnknown(
                f"{self._file} does not say {_NAMES[what][0]}, and the default of {self._kind} is not known here; give"
                " the whole configuration, as transformers writes it with"
                " AutoConfig.from_pretrained(model).to_json_file('config.json', use_diff=False)"
            )
        return value


def _window(sizes: _Sizes) -> int | None:
    window = sizes.find("window")
    rope = sizes.text.get("rope_parameters") or sizes.text.get("rope_scaling")
    if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) in _GROWING_ROPE:
        original = rope.get("original_max_position_embeddings")
        return original or sizes.number("original_max_position_embeddings") or window
    return window


def _image_tokens(document: Mapping[str, Any]) -> int | None:
    vision = document.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    if isinstance(told := document.get("image_seq_length"), int):
        return told
    size, patch = vision.get("image_size"), vision.get("patch_size")
    if document.get("model_type") == "llava" and isinstance(size, int) and isinstance(patch, int):
        return (size // patch) ** 2
    return None  # by the size of the image, or in a way of its own


def _stored_bytes(folder: Path) -> int:
    """Bytes of the weights that lie beside a configuration, or that an index of them tells; 0 where there is neither."""
    if files := list(folder.glob("*.safetensors")):
        return sum(file.stat().st_size for file in files)
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
