"""The options with which the parts of a model are loaded."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4VisionConfig,
    GPT2Config,
    LlamaConfig,
)

from tests.support.tiny.small import SMALL
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.parallel.split import split_options


def options_of(config: Any, count: int = 2, auto: Any = AutoModelForCausalLM) -> Any:
    """Return the configuration for the library; None if there is none."""
    return split_options(config, auto, count).get("distributed_config")


def test_a_model_on_one_device_is_not_split() -> None:
    """Whatever its heads are."""
    assert options_of(LlamaConfig(**SMALL), 1) is None


def test_a_text_model_is_split_by_its_own_plan() -> None:
    """No rule of it is changed."""
    found = options_of(LlamaConfig(**SMALL))
    assert (found.tp_size, found.tp_plan) == (2, None)


def test_towers_stay_whole() -> None:
    """The driver encodes images alone, so no rule of the tower may need the others."""
    text = Gemma4TextConfig(**SMALL, head_dim=16)
    vision = Gemma4VisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    config = Gemma4Config(text_config=text, vision_config=vision)
    plan = options_of(config, auto=AutoModelForImageTextToText).tp_plan
    assert set(plan.values()) == {"replicate"}
    assert any("vision" in rule for rule in plan)
    assert not any("language_model" in rule or "lm_head" in rule for rule in plan)


@pytest.mark.parametrize(
    ("config", "count", "message"),
    [
        (LlamaConfig(**SMALL), 3, "4 heads cannot be divided by 3"),
        (LlamaConfig(**SMALL), 4, "2 KV heads cannot be divided by 4"),
        (GPT2Config(), 2, "transformers has no plan"),
    ],
)
def test_models_that_cannot_be_split_are_refused(config: Any, count: int, message: str) -> None:
    """The error names the key and the reason."""
    with pytest.raises(ConfigError, match=rf"handler\.tensorParallel: .*{message}"):
        options_of(config, count)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"torchserve-stateful\[parallel\]"):
        options_of(LlamaConfig(**SMALL))
