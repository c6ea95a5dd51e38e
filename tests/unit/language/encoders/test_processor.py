"""Processors load from the hub's files as they are, with torchvision or without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers.utils import is_torchvision_available

from tests.support.pictures import noise
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.language.network.load import load_model

TYPES = {
    "glm4v": "Glm4vProcessor",
    "internvl": "InternVLProcessor",
    "mistral3": "PixtralProcessor",
    "pixtral": "PixtralProcessor",
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "smolvlm": "SmolVLMProcessor",
}


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_stock_processor_reads_images(name: str) -> None:
    """The class that the checkpoint names. Without torchvision it refuses videos."""
    model = {**MODELS, **MORE_MODELS}[name]()
    assert model.encoder is not None
    (tower,) = model.encoder.towers
    processor = tower._processor
    assert type(processor).__name__ == TYPES[name]
    assert model.encoder.prepare(noise(1)).ids.count(tower.token_id) > 0
    if hasattr(processor, "video_processor"):
        if not is_torchvision_available():
            with pytest.raises(ImportError, match="videos are not served"):
                processor.video_processor(videos=[])
        assert json.loads(processor.to_json_string())["processor_class"] == TYPES[name]


@pytest.mark.skipif(is_torchvision_available(), reason="torchvision is installed")
@pytest.mark.parametrize("name", ["Llama4", "Lfm2Vl", "Cohere2Vision"])
def test_a_model_whose_images_need_torchvision_is_refused(name: str, tmp_path: Path) -> None:
    """In one sentence, with the command that installs it."""
    model = MORE_MODELS["pixtral"]()
    model.network.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    files = {"image_processor_type": f"{name}ImageProcessor", "processor_class": f"{name}Processor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(files))
    with pytest.raises(ConfigError, match=r"cannot load.*torchvision.*\[vision\]"):
        load_model(HandlerConfig(model=str(tmp_path)), tmp_path, torch.device("cpu"))
