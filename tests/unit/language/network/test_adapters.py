"""An adapter that cannot be used is refused when it is loaded, with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny import llama, llava, save
from tests.support.tiny.beside import mllama
from tests.support.tiny.latent import deepseek_v3
from tests.support.tiny.lora import ALPHA, RANK, save_adapter
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.adapters import load_adapter
from ts_stateful.language.network.load import Model, load_model, use_adapters

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, ALPHA / RANK),
        ({"use_rslora": True}, ALPHA / RANK**0.5),
        ({"alpha_pattern": {"q_proj": 3}}, 3 / RANK),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 3, "k_proj": 5}}, 3 / RANK),
        ({"alpha_pattern": {"j_proj": 3}}, ALPHA / RANK),
    ],
)
def test_the_scale_is_that_of_peft(config: dict[str, Any], scale: float, tmp_path: Path) -> None:
    """By the rank or its root, and by patterns of layers; the digest depends on it."""
    model = llama()
    plain, folder = (
        save_adapter(model, tmp_path / name, 1, **own) for name, own in (("a", {}), ("b", config))
    )
    adapter = load_adapter(model.network, "red", folder)
    assert adapter.changes[LAYER].scale == pytest.approx(scale)
    same = adapter.digest == load_adapter(model.network, "red", plain).digest
    assert same is (scale == ALPHA / RANK)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"use_dora": True}, "`use_dora` True is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "`init_lora_weights` 'pissa_niter_4' is not"),
        ({"peft_type": "IA3"}, "`peft_type` 'IA3' is not supported"),
        ({"bias": "all"}, "`bias` 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` ['lm_head'] is not supported"),
    ],
)
def test_other_kinds_of_adapters_are_refused(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """They would change more than linear layers."""
    model = llama()
    folder = save_adapter(model, tmp_path / "red", 1, **config)
    with pytest.raises(ConfigError) as refused:
        use_adapters(model, {"red": folder})
    assert "handler.adapters: red" in str(refused.value)
    assert reason in str(refused.value)


def _renamed(folder: Path, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(dict(change(*each) for each in load_file(path).items()), path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name, t: (name.replace("layers", "blocks"), t), "has no layer `model.blocks.0"),
        (
            lambda name, t: (name.replace("lora_A", "lora_magnitude"), t),
            "is not the change of a linear",
        ),
        (lambda name, t: (name.replace(LAYER, "lm_head"), t), "`lm_head` cannot be changed"),
        (
            lambda name, t: (name, t[:, :3].contiguous() if "lora_A" in name else t),
            "does not have the sizes (128, 64)",
        ),
    ],
)
def test_changes_that_do_not_fit_are_refused(change: Any, reason: str, tmp_path: Path) -> None:
    """Each names the layer."""
    model = llama()
    folder = save_adapter(model, tmp_path / "red", 1)
    _renamed(folder, change)
    with pytest.raises(ConfigError) as refused:
        use_adapters(model, {"red": folder})
    assert reason in str(refused.value)


def test_layers_that_a_session_does_not_have_alone_are_refused(tmp_path: Path) -> None:
    """Images are shared by sessions, and latents are expanded again in every step."""
    seeing, latent, beside = llava(), deepseek_v3(), mllama()
    tower = next(
        name
        for name, _ in seeing.network.named_modules()
        if "vision" in name and name.endswith("q_proj")
    )
    for model, layer in (
        (seeing, tower),
        (latent, "model.layers.0.self_attn.kv_b_proj"),
        (beside, "model.language_model.layers.1.cross_attn.v_proj"),
    ):
        folder = tmp_path / model.name
        made = model.network.get_submodule(layer)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
        tensors = {"A": torch.zeros(2, made.in_features), "B": torch.zeros(made.out_features, 2)}
        save_file(
            {f"base_model.model.{layer}.lora_{which}.weight": t for which, t in tensors.items()},
            folder / "adapter_model.safetensors",
        )
        with pytest.raises(ConfigError, match="cannot be changed for a session alone"):
            use_adapters(model, {"red": folder})


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    """The error names the files."""
    with pytest.raises(ConfigError, match=r"needs adapter_config.json and adapter_model"):
        use_adapters(llama(), {"red": tmp_path})


def test_adapters_are_loaded_with_their_model(tmp_path: Path) -> None:
    """From folders of the archive, by `handler.adapters`."""
    model = llama()
    save(model, tmp_path / "model")
    save_adapter(model, tmp_path / "adapters" / "red", 1)
    settings = HandlerConfig(adapters={"red": "adapters/red"})
    loaded = load_model(settings, tmp_path, torch.device("cpu"))
    assert loaded.adapters.names == ["red"]
    assert _logits(loaded, None).equal(_logits(loaded, None))
    assert not _logits(loaded, "red").allclose(_logits(loaded, None))


def _logits(model: Model, adapter: str | None) -> torch.Tensor:
    return model.forward([1, 2, 3], [Span(model.new_kv(), 0, 3)], None, [2], [adapter])
