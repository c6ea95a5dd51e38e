"""Small models in the layout in which the hub publishes them, loaded as a user's are."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import Model, load_model
from ts_stateful.language.trial import verify_media

__all__ = ["Checkpoint", "loaded", "write"]

_Json = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's folder is made of; `files` are the JSON files of its processor.

    `rearrange` makes of a written folder what the library no longer writes.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    files: Mapping[str, _Json]
    rearrange: Callable[[Path], None] = lambda _folder: None


def write(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write a checkpoint as on the hub: weights in safetensors, a tokenizer with its template, and the processor's files."""
    checkpoint.network.save_pretrained(folder)
    checkpoint.tokenizer.save_pretrained(folder)
    for name, content in checkpoint.files.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    checkpoint.rearrange(folder)
    return folder


@cache
def _written(build: Callable[[], Checkpoint]) -> tempfile.TemporaryDirectory[str]:
    checkpoint = build()  # or skip, which leaves no folder
    folder = tempfile.TemporaryDirectory(prefix=f"{build.__name__}-")
    write(checkpoint, Path(folder.name))
    return folder


def loaded(
    build: Callable[[], Checkpoint],
    image_tiling: Literal["each", "none"] | None = None,
    needs: str | None = None,
) -> Model:
    """Load a checkpoint, which is made once in a process, with nothing accelerated.

    A test is skipped where the package is missing that its processor `needs`.
    """
    if needs is not None and find_spec(needs) is None:
        pytest.skip(f"its images need {needs}")
    folder = Path(_written(build).name)
    settings = HandlerConfig(
        model=str(folder),
        pack_linears=False,
        fused_layers=False,
        attention_kernels=False,
        image_tiling=image_tiling,
    )
    model = load_model(settings, folder, torch.device("cpu"))
    verify_media(model)
    return model
