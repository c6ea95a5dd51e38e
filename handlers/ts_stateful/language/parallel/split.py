"""The options with which stock code loads a rank's part of a model, by the plan that `transformers` has for it."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from ts_stateful.config.check.split import split_problem
from ts_stateful.config.schema import ConfigError

__all__ = ["split_options"]

_KEY = "handler.tensorParallel"


def split_options(config: Any, auto: Any, count: int) -> dict[str, Any]:
    """Return arguments for `from_pretrained` of the class `auto`; none for a model on one device.

    Raises:
        ConfigError: the model cannot be split into `count` parts, or a package is missing.
    """
    if count == 1:
        return {}
    if importlib.util.find_spec("accelerate") is None:
        raise ConfigError(
            f"{_KEY}: a split model needs accelerate, which is not installed:"
            " pip install 'torchserve-stateful[parallel]'"
        )
    problem = split_problem(config.to_dict(), count)
    if problem is None and not config.get_text_config(decoder=True).base_model_tp_plan:
        problem = "transformers has no plan by which its layers are split"
    if problem is not None:
        raise ConfigError(
            f"{_KEY}: the model cannot be split over {count} devices: {problem}; leave the key out"
        )
    from transformers.distributed import DistributedConfig  # noqa: PLC0415 - a second of imports

    return {"distributed_config": DistributedConfig(tp_size=count, tp_plan=_whole(config, auto))}


def _whole(config: Any, auto: Any) -> dict[str, str] | None:
    """Return rules that keep towers of images whole, which the driver computes alone; None if no plan splits them."""
    text = config.get_text_config(decoder=True)
    others = (getattr(config, name, None) for name in config.sub_configs)
    if not any(getattr(other, "base_model_tp_plan", None) for other in others if other is not text):
        return None
    with torch.device("meta"):
        network = auto.from_config(config)
    decoder = network.get_decoder()
    name = next(name for name, module in network.named_modules() if module is decoder)
    return {
        rule: "replicate"
        for rule in network.tp_plan
        if not rule.startswith((f"{name}.", "lm_head"))
    }
