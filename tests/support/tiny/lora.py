"""LoRA adapters with random weights, as `peft` saves them, and models into which they are merged."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ts_stateful.language.network.load import Model

RANK, ALPHA = 4, 16
TARGETS = ("q_proj", "v_proj", "down_proj")


def save_adapter(
    model: Model, folder: Path, seed: int, targets: Sequence[str] = TARGETS, **config: Any
) -> Path:
    """Write an adapter that changes the layers of these names so much that replies differ."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    decoder = set(model.network.get_decoder().modules())
    for path, layer in model.network.named_modules():
        if layer in decoder and path.rpartition(".")[2] in targets:
            down = torch.randn(RANK, layer.in_features, generator=generator)
            up = torch.randn(layer.out_features, RANK, generator=generator)
            tensors[f"base_model.model.{path}.lora_A.weight"] = 0.1 * down
            tensors[f"base_model.model.{path}.lora_B.weight"] = 0.1 * up
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merged(model: Model, folder: Path, scale: float = ALPHA / RANK) -> Model:
    """Return a model whose weights contain the adapter's change, for stock code to compute with."""
    network = copy.deepcopy(model.network)
    tensors = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if ".lora_A." in name:
                path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                up = tensors[name.replace(".lora_A.", ".lora_B.")]
                network.get_submodule(path).weight += scale * up @ down
    return dataclasses.replace(model, network=network)
