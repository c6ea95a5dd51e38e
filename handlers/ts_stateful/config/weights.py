"""The formats of weights: safetensors are read, pickles are refused.

Safetensors begin with the length of a JSON header: https://huggingface.co/docs/safetensors/#format
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ts_stateful.config.document import read_json

__all__ = [
    "HOW_TO_CONVERT",
    "INDEX",
    "pickled_weights",
    "read_shapes",
    "weight_files",
    "weights_cure",
]

INDEX = "model.safetensors.index.json"
_SAFE = ("model.safetensors", INDEX)
_MAX_HEADER = 100_000_000  # bytes, as in the library
_LFS = b"version https://git-lfs"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")

HOW_TO_CONVERT = (
    "download the model to a folder, and convert it there if it has only pickled weights, see"
    " docs/serve.md#weights"
)


class _Index(Struct):
    weight_map: Annotated[dict[str, str], Meta(min_length=1)]


class _Tensor(Struct):
    shape: list[int] = []
    data_offsets: tuple[int, int] = (0, 0)  # from the end of the header


def weight_files(folder: Path) -> list[str]:
    """Return the names of the files with a model's weights, as the library chooses them. They may be missing.

    Raises:
        OSError, ValueError: their index cannot be read.
    """
    named = _configuration(folder).get("transformers_weights")
    found = next((name for name in _SAFE if (folder / name).is_file()), _SAFE[0])
    name = named if isinstance(named, str) else found
    if not name.endswith(".index.json"):
        return [name]
    return sorted(set(read_json(folder / name, _Index).weight_map.values()))


def read_shapes(file: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a file of safetensors.

    Raises:
        OSError, ValueError: it cannot be read, is truncated, or has another format.
    """
    with file.open("rb") as stream:
        begin = stream.read(len(_LFS))
        if begin == _LFS:
            raise ValueError("it is a pointer of git-lfs, not the weights")
        length, size = int.from_bytes(begin[:8], "little"), os.fstat(stream.fileno()).st_size
        if length > min(size - 8, _MAX_HEADER):
            raise ValueError("it is no safetensors file, or truncated")
        stream.seek(8)
        try:
            tensors = msgspec.json.decode(stream.read(length), type=dict[str, _Tensor])
        except RecursionError:
            raise ValueError("its header is nested too deeply") from None
    expected = 8 + length + max((each.data_offsets[1] for each in tensors.values()), default=0)
    if size != expected:
        raise ValueError(f"it has {size} bytes instead of {expected}")
    return {name: tensor.shape for name, tensor in tensors.items() if name != "__metadata__"}


def pickled_weights(folder: Path) -> str | None:
    """Return the file with a model's weights if it is a pickle, and there are no safetensors beside it; else None.

    `config.json` can name such a file too, as `transformers_weights`.
    """
    named = _configuration(folder).get("transformers_weights")
    if isinstance(named, str):
        return None if named.endswith((".safetensors", ".safetensors.index.json")) else named
    if any((folder / name).is_file() for name in _SAFE):
        return None
    return next((name for name in _PICKLED if (folder / name).is_file()), None)


def weights_cure(folder: Path) -> str:
    """Return the instruction that converts the pickled weights in a folder."""
    sees = "vision_config" in _configuration(folder)
    auto = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    return (
        "a pickle can run code, so convert it where that does no harm, then pack or start again: "
        f'python -c "from transformers import {auto} as M; '
        f"M.from_pretrained('{folder}', use_safetensors=False, dtype='auto').save_pretrained('{folder}')\""
    )


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / "config.json", dict[str, Any])
    except (OSError, ValueError):
        return {}
