"""Rules for devices, and for a model that is split over several of them (`handler.tensorParallel`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ts_stateful.config.check.finding import Finding, error
from ts_stateful.config.document import read_json
from ts_stateful.config.schema import EngineConfig, HandlerConfig
from ts_stateful.config.sizes.layers import has_recurrent_layers
from ts_stateful.config.sizes.numbers import Numbers
from ts_stateful.config.sizes.transformer import text_of

__all__ = ["check_device", "check_devices", "check_split", "split_problem"]

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_KEY = "handler.tensorParallel"
_CURE = "leave it out, and serve the model on one device"


def split_problem(document: Mapping[str, Any], count: int) -> str | None:
    """Return the reason for which the model of a `config.json` cannot be split into `count` parts; None if there is none."""
    text = text_of(document)
    sizes = Numbers(text, Path("config.json"))
    if document.get("quantization_config") is not None:
        return "its weights are quantised"
    if has_recurrent_layers(sizes):
        return "its layers keep recurrent states"
    if sizes.number("index_head_dim") is not None:
        return "its layers have an index"
    heads = sizes.find("heads")
    for name, number in (("heads", heads), ("KV heads", sizes.find("kv_heads") or heads)):
        if number is not None and number % count:
            return f"{number} {name} cannot be divided by {count}"
    return None


def check_device(engine: EngineConfig) -> Iterator[Finding]:
    """Find a device that no machine has, without a look at this one."""
    if not _DEVICE.fullmatch(engine.device):
        yield error(
            "handler.device",
            f"there is no device {engine.device[:64]!r}",
            "write auto, cpu, cuda, or cuda:1 for the second GPU",
        )


def check_devices(handler: HandlerConfig) -> Iterator[Finding]:
    """Find a device that a split model would have to share with itself."""
    if handler.tensor_parallel > 1 and handler.device.startswith("cuda:"):
        yield error(
            _KEY,
            f"{handler.tensor_parallel} parts of the model do not run on {handler.device} alone",
            "write `device: cuda`, and choose GPUs by CUDA_VISIBLE_DEVICES",
        )


def check_split(folder: Path, count: int) -> Iterator[Finding]:
    """Find the reason for which a model's folder cannot be split; its plan is checked where `transformers` is installed."""
    try:
        problem = split_problem(read_json(folder / "config.json", dict[str, Any]), count)
    except (OSError, ValueError):
        return  # `check_checkpoint` reports it
    if problem is None and not _has_plan(folder):
        problem = "transformers has no plan by which its layers are split"
    if problem is not None:
        yield error(_KEY, f"{folder} cannot be split over {count} devices: {problem}", _CURE)


def _has_plan(folder: Path) -> bool:
    try:
        library: Any = import_module("transformers")  # absent on machines that only pack
        config = library.AutoConfig.from_pretrained(folder)
    except (ImportError, OSError, ValueError, KeyError):
        return True  # unknown, or reported by `check_checkpoint`
    return bool(config.get_text_config(decoder=True).base_model_tp_plan)
