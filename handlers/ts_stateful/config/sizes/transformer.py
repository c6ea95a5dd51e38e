"""The sizes of a language model, read from its `config.json` without torch or transformers.

The engine measures the same sizes on the running model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ts_stateful.config.document import read_json
from ts_stateful.config.sizes.layers import (
    NO_FIXED,
    STATE_SETS,
    FixedSize,
    find_fixed,
    num_attentive,
    num_beside,
)
from ts_stateful.config.sizes.numbers import DTYPE_BYTES, ModelUnknown, Numbers
from ts_stateful.config.sizes.quantities import show_bytes
from ts_stateful.config.weights import INDEX, weight_files

__all__ = ["TransformerSize", "read_transformer", "text_of"]

_TEXT = ("text_config", "llm_config", "language_config")
# The positions of these models change beyond the original window.
_GROWING_ROPE = {"dynamic", "longrope", "su"}


@dataclass(frozen=True)
class TransformerSize:
    """The sizes of a model. `window` is in tokens; `image_tokens` are those of one image or clip (0: none; None: they vary).

    `layers` are those with keys and values, of which `indexes` choose tokens by a further key of `index_dim` numbers; `fixed`
    are the recurrent states of others. A `latent` model keeps one state for all heads.
    `weights` counts numbers in the model's files, or is `estimated` from its dimensions.
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
    indexes: int = 0
    index_dim: int = 0
    fixed: FixedSize = NO_FIXED
    heads: int = 0
    latent: bool = False

    def part(self, count: int) -> TransformerSize:
        """Return the sizes on one device if the model is split over `count` of them. Each has all latents.

        Raises:
            ModelUnknown: its heads cannot be divided so.
        """
        kv_heads = 0 if self.latent else self.kv_heads
        if self.heads % count or kv_heads % count:
            raise ModelUnknown(
                f"{self.heads} heads and {self.kv_heads} KV heads cannot be divided by {count} devices; choose a number that"
                " divides both"
            )
        kv_heads = self.kv_heads if self.latent else kv_heads // count
        return replace(self, kv_heads=kv_heads, weights=-(-self.weights // count))

    @property
    def sees(self) -> bool:
        """Return True if the model takes images."""
        return self.image_tokens != 0

    def token_bytes(self, dtype: str) -> int:
        """Return the bytes of one token's keys and values in all layers, with the keys of indexes."""
        pairs = self.layers * self.kv_heads * (self.key_dim + self.value_dim)
        return (pairs + self.indexes * self.index_dim) * DTYPE_BYTES[dtype]

    def tokens_in(self, num_bytes: int, dtype: str) -> int:
        """Return the tokens of a session that fit, beside its recurrent states."""
        return max(0, num_bytes - self.fixed.num_bytes(dtype)) // max(1, self.token_bytes(dtype))

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of the weights."""
        return self.weights * DTYPE_BYTES[dtype]

    def image_bytes(self, num_tokens: int, dtype: str) -> int:
        """Return the bytes of the embeddings of images of so many tokens."""
        return num_tokens * self.hidden * self.feature_maps * DTYPE_BYTES[dtype]

    def arithmetic(self, dtype: str) -> str:
        """Write the calculation of `token_bytes`."""
        numbers = (
            f"{self.layers} layers x {self.kv_heads} KV heads x ({self.key_dim} + {self.value_dim})"
        )
        if self.indexes:
            numbers = f"({numbers} + {self.indexes} indexes x {self.index_dim})"
        shown = (
            f"{numbers} x {DTYPE_BYTES[dtype]} bytes ({dtype})"
            f" = {self.token_bytes(dtype):,} bytes a token"
        )
        if fixed := self.fixed.num_bytes(dtype):
            layers = f"recurrent states of {self.fixed.layers} layers at {STATE_SETS} places"
            shown += f", and {show_bytes(fixed)} a session for {layers}"
        return shown


def read_transformer(path: Path) -> TransformerSize:
    """Read the sizes of the model in a folder, or of a `config.json`.

    Raises:
        ModelUnknown: there is no such file, or it lacks a size.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        document = read_json(file, dict[str, Any])
    except OSError as error:
        raise ModelUnknown(
            f"{file} cannot be read: {error.strerror}; name a folder with a config.json"
        ) from None
    except ValueError as error:
        raise ModelUnknown(
            f"{file} is not the configuration of a model: {error}; name its config.json"
        ) from None
    if isinstance(thinker := document.get("thinker_config"), dict):
        document = thinker  # of a model that also speaks, the part that is served
    return _size(document, text_of(document), file)


def text_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a `config.json` that describes the language model."""
    return next((document[key] for key in _TEXT if isinstance(document.get(key), dict)), document)


def _size(document: Mapping[str, Any], text: Mapping[str, Any], file: Path) -> TransformerSize:
    sizes = Numbers(text, file)
    vision = document.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}
    maps = vision.get("deepstack_visual_indexes")
    named = [config.get(key) for config in (text, document) for key in ("dtype", "torch_dtype")]
    stored = next((name for name in named if isinstance(name, str) and name in DTYPE_BYTES), None)
    # Without a dtype, two bytes a number: too many weights are the safe side.
    counted = _stored_bytes(file.parent) // DTYPE_BYTES[stored or "bfloat16"]
    heads = _heads(sizes)
    return TransformerSize(
        layers=num_attentive(sizes),
        kv_heads=heads.kv_heads,
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
        hidden=sizes.known("hidden"),
        feature_maps=_maps_beside(sizes, heads, Numbers(vision, file))
        or 1 + len(maps if isinstance(maps, list) else ()),
        window=_window(sizes),
        image_tokens=_image_tokens(document),
        weights=counted or _text_weights(sizes, heads) + _vision_weights(Numbers(vision, file)),
        estimated=not counted,
        indexes=_num_indexes(sizes),
        index_dim=sizes.number("index_head_dim") or 0,
        fixed=find_fixed(sizes),
        heads=heads.num,
        latent=sizes.number("kv_lora_rank") is not None,
    )


def _heads(sizes: Numbers) -> _Heads:
    if not num_attentive(sizes):
        return _Heads(0, 0, 0, 0)
    heads = sizes.known("heads")
    rank = sizes.number("kv_lora_rank")
    if rank is not None:  # latent attention keeps the latents of keys and values
        return _Heads(heads, 1, rank, sizes.number("qk_rope_head_dim") or 0)
    dim = sizes.number("head_dim") or max(1, sizes.known("hidden") // heads)
    single = sizes.text.get("multi_query") is True and not sizes.text.get(
        "new_decoder_architecture"
    )
    return _Heads(heads, 1 if single else sizes.find("kv_heads") or heads, dim, dim)


def _num_indexes(sizes: Numbers) -> int:
    """Return the number of layers with an index of their own; others use that of an earlier layer."""
    if sizes.number("index_head_dim") is None:
        return 0
    kinds = sizes.text.get("indexer_types") or sizes.text.get("index_topk_pattern")
    if kinds:
        return sum(kind in ("full", "F") for kind in kinds)
    period, offset = sizes.number("index_topk_freq") or 1, sizes.text.get("index_skip_topk_offset")
    first = 2 if offset is None else int(offset)
    layers = range(sizes.known("layers"))
    return sum(max(layer - first + 1, 0) % period == 0 for layer in layers)


def _text_weights(sizes: Numbers, heads: _Heads) -> int:
    """Estimate the weights: projections, a gated feed-forward part of all experts, tables of the vocabulary."""
    width = sizes.known("hidden")
    attention = (heads.num + heads.kv_heads) * (heads.key_dim + heads.value_dim)
    forward = 3 * (sizes.find("intermediate") or 4 * width) * (sizes.find("experts") or 1)
    tables = 1 if sizes.text.get("tie_word_embeddings") else 2
    return width * (
        sizes.known("layers") * (attention + forward) + tables * (sizes.find("vocabulary") or 0)
    )


def _vision_weights(sizes: Numbers) -> int:
    width = sizes.find("hidden") or sizes.number("embed_dim") or 0
    layers = sizes.find("layers") or sizes.number("depth") or 0
    return layers * width * (4 * width + 2 * (sizes.find("intermediate") or 4 * width))


class _Heads(NamedTuple):
    num: int
    kv_heads: int
    key_dim: int
    value_dim: int


def _maps_beside(sizes: Numbers, heads: _Heads, tower: Numbers) -> int:
    """Return how many vectors of hidden size the keys and values of an image beside the text take; 0 if it is in the text."""
    size, patch, tiles = map(tower.number, ("image_size", "patch_size", "max_num_tiles"))
    rows = (tiles or 1) * (((size or 0) // (patch or 1)) ** 2 + 1)
    width = heads.kv_heads * (heads.key_dim + heads.value_dim)
    return num_beside(sizes) * rows * width // sizes.known("hidden")


def _window(sizes: Numbers) -> int | None:
    window = sizes.find("window")
    rope = sizes.text.get("rope_parameters") or sizes.text.get("rope_scaling")
    if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) in _GROWING_ROPE:
        original = rope.get("original_max_position_embeddings")
        return original or sizes.number("original_max_position_embeddings") or window
    return window


def _image_tokens(document: Mapping[str, Any]) -> int | None:
    vision = document.get("vision_config")
    if not isinstance(vision, dict):
        return None if isinstance(document.get("audio_config"), dict) else 0
    if isinstance(length := document.get("image_seq_length"), int):
        return length
    if document.get("model_type") == "mllama":
        return 1
    size, patch = vision.get("image_size"), vision.get("patch_size")
    if document.get("model_type") == "llava" and isinstance(size, int) and isinstance(patch, int):
        return (size // patch) ** 2
    return None  # it depends on the image or the model


def _stored_bytes(folder: Path) -> int:
    """Return the bytes of the weights in a folder, by their files or their index; 0 without both."""
    with contextlib.suppress(OSError, ValueError):
        return sum((folder / name).stat().st_size for name in weight_files(folder))
    try:
        index = read_json(folder / INDEX, dict[str, Any])
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
