"""The formats of weights: safetensors are read, pickles are refused."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["HOW_TO_CONVERT", "pickled_weights", "weights_cure"]

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")

HOW_TO_CONVERT = (
    "download the model to a folder, and convert it there if it has only pickled weights, see"
    " docs/serve.md#weights"
)


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


def _configuration(folder: Path) -> dict[str, object]:
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
