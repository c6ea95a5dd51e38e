"""The files of LoRA adapters in the format of `peft`, read without torch (arXiv:2106.09685)."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from ts_stateful.config.document import read_json
from ts_stateful.config.schema import ConfigError
from ts_stateful.config.weights import read_shapes

__all__ = ["ADAPTER_WEIGHTS", "AdapterFiles", "read_adapter", "tensor_name"]

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_NAME: Final = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# Settings of `peft` that change more than linear layers, or in another way; with values that change nothing.
_PLAIN: Final[dict[str, tuple[Any, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    **dict.fromkeys(("use_dora", "lora_bias", "use_qalora"), (False, None)),
    **dict.fromkeys(
        ("layer_replication", "target_parameters", "trainable_token_indices"), (None, [])
    ),
    "alora_invocation_tokens": (None, []),
    # With others, as PiSSA's, `peft` also changes the model's own weights.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva", "mica"),
}


class AdapterFiles(NamedTuple):
    """The settings of an adapter, the paths of the layers that it changes, and the number of its weights."""

    settings: dict[str, Any]
    layers: list[str]
    num_weights: int


def tensor_name(layer: str, which: str) -> str:
    """Return the name of a layer's tensor `A` `(rank, in)` or `B` `(out, rank)`."""
    return f"base_model.model.{layer}.lora_{which}.weight"


def read_adapter(name: str, folder: Path) -> AdapterFiles:
    """Read an adapter's settings and the names of its tensors.

    Raises:
        ConfigError: it is incomplete, or changes more than linear layers.
    """
    key = f"handler.adapters: {name}"
    try:
        fields = read_json(folder / _CONFIG, dict[str, Any])
        shapes = read_shapes(folder / ADAPTER_WEIGHTS)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{key}: {folder} needs {_CONFIG} and {ADAPTER_WEIGHTS}, as `peft` saves them: {error}"
        ) from None
    names = sorted(shapes)
    for field, plain in _PLAIN.items():
        if fields.get(field, plain[0]) not in plain:
            raise ConfigError(
                f"{key}: `{field}` {fields[field]!r} is not supported, only plain LoRA"
            )
    other = next((name for name in names if not _NAME.fullmatch(name)), None)
    if other is not None:
        raise ConfigError(f"{key}: `{other}` is not the change of a linear layer")
    if not names:
        raise ConfigError(f"{key}: {ADAPTER_WEIGHTS} is empty")
    layers = dict.fromkeys(match[1] for name in names if (match := _NAME.fullmatch(name)))
    for path in layers:
        if not all(tensor_name(path, which) in names for which in "AB"):
            raise ConfigError(f"{key}: {ADAPTER_WEIGHTS} has only one of A and B of `{path}`")
    return AdapterFiles(fields, list(layers), sum(map(math.prod, shapes.values())))
