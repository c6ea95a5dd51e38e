"""Images are tried when a model is loaded: what would differ from the stock model is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.tiny import MODELS, MORE_MODELS, unserved
from tests.support.tiny.published import Checkpoint, write
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.language.encoders.encoder import LookAhead
from ts_stateful.language.network.load import accelerate, load_model
from ts_stateful.language.trial import verify_media

CPU = torch.device("cpu")
LOOK_AHEAD = {"gemma3_vision": LookAhead.ALL, "gemma4_vision": LookAhead.WINDOWED}
SEEING = [
    *LOOK_AHEAD,
    "cohere2_vision",
    "gemma3n_vision",
    "glm4v",
    "idefics3",
    "internvl",
    "lfm2_vl",
    "llama4_vision",
    "llava",
    "mistral3",
    "mllama",
    "paligemma",
    "paligemma2",
    "pixtral",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "smolvlm",
]
HEARING = ["audio_flamingo3", "glm_asr", "qwen2_audio", "voxtral"]
BOTH = ["qwen2_5_omni", "qwen3_omni"]


@pytest.mark.parametrize("name", [*SEEING, *HEARING, *BOTH])
def test_served_models_pass(name: str) -> None:
    """Small and large pictures or clips, adjacent ones, and text right after one; the trial finds what looks ahead."""
    model = {**MODELS, **MORE_MODELS}[name]()
    assert model.encoder is not None
    model.encoder.look_ahead = LookAhead.NONE
    verify_media(model)
    assert model.encoder.look_ahead is LOOK_AHEAD.get(name, LookAhead.NONE)
    assert model.encoder.num_encoded == 0
    assert model.network.config.get_text_config(decoder=True)._attn_implementation == "ts_stateful"


def test_a_text_model_passes() -> None:
    """There is nothing to try."""
    verify_media(MODELS["llama"]())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (unserved.idefics2, "other tokens around one of the images"),
        (unserved.ovis2, "cannot be computed"),
        (unserved.fuyu, "cannot be computed"),
    ],
    ids=["idefics2", "ovis2", "fuyu"],
)
def test_others_are_refused(build: Callable[[], Checkpoint], reason: str, tmp_path: Path) -> None:
    """With one sentence, and no traceback."""
    folder = write(build(), tmp_path / build.__name__)
    with pytest.raises(ConfigError, match=reason) as refused:
        verify_media(load_model(HandlerConfig(model=str(folder)), folder, CPU))
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("name", ["qwen3_omni", "qwen3_vl", "qwen3_vl_moe"])
def test_features_for_the_first_layers_count(name: str) -> None:
    """With large weights before them, since replies of so small models hardly depend on them; the kernels add them as well."""
    model = {**MODELS, **MORE_MODELS}[name]()
    for parameter_name, parameter in model.network.named_parameters():
        if "deepstack_merger_list" in parameter_name or "visual.merger_list" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.5)
    accelerate(model, HandlerConfig())
    verify_media(model)
    encoder = model.encoder
    assert encoder is not None
    inputs = encoder._inputs
    encoder._inputs = lambda stands, maps: inputs(stands, maps[:1])  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="other logits"):
        verify_media(model)
