"""LoRA adapters: small changes of a model's linear layers, chosen by each session (arXiv:2106.09685)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kv.to_device import to_device

__all__ = ["Adapter", "Adapters", "load_adapter"]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY: Final = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
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
}


class _Change(NamedTuple):
    """A layer's change: inputs times `down` `(rank, in)`, times `up` `(out, rank)`, times `scale`."""

    down: Tensor
    up: Tensor
    scale: float


class Adapter(NamedTuple):
    """An adapter's changes by the paths of the layers; `digest` names its content."""

    digest: str
    changes: Mapping[str, _Change]


class Adapters:
    """The adapters of one network, by name. Its layers are changed only during a pass that uses one."""

    def __init__(self, network: PreTrainedModel, adapters: Mapping[str, Adapter]) -> None:
        self._device = network.device
        self._adapters = dict(adapters)
        paths = {path for adapter in adapters.values() for path in adapter.changes}
        # The layers themselves may be replaced by faster ones.
        self._layers = {path: _parent(network, path) for path in sorted(paths)}

    @property
    def names(self) -> list[str]:
        """The names that sessions can choose."""
        return list(self._adapters)

    def fingerprint(self, name: str | None) -> dict[str, str]:
        """Return the digest of an adapter as a part of a session's fingerprint; nothing if it is not here."""
        return {"adapter": self._adapters[name].digest} if name in self._adapters else {}

    @contextmanager
    def applied(self, names: Sequence[str | None], counts: Sequence[int]) -> Iterator[None]:
        """Change the layers meanwhile, for a pass over `counts` tokens of sessions with adapters of these names."""
        if not any(names):
            yield
            return
        owners = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        rows = {
            name: to_device([at for at, owner in enumerate(owners) if owner == name], self._device)
            for name in dict.fromkeys(owners)
            if name is not None
        }
        with ExitStack() as stack:
            for path, (parent, attribute) in self._layers.items():
                parts = [
                    (self._adapters[name].changes[path], places)
                    for name, places in rows.items()
                    if path in self._adapters[name].changes
                ]
                if parts:
                    hook = partial(_add, len(owners), parts)
                    stack.enter_context(getattr(parent, attribute).register_forward_hook(hook))
            yield


def _add(
    num_tokens: int,
    parts: Sequence[tuple[_Change, Tensor]],
    module: nn.Module,
    args: tuple[Tensor, ...],
    output: Tensor,
) -> Tensor:
    """Add the changes of some tokens to a layer's output."""
    (inputs,) = args
    if inputs.shape[:-1].numel() != num_tokens:
        raise RuntimeError(f"{type(module).__name__} does not see all tokens in their order")
    tokens = inputs.reshape(num_tokens, -1)
    added = output.new_zeros(num_tokens, output.shape[-1])
    for change, rows in parts:
        chosen = tokens.index_select(0, rows)
        added[rows] = linear(linear(chosen, change.down), change.up) * change.scale
    return output + added.view_as(output)


def load_adapter(network: PreTrainedModel, name: str, folder: Path) -> Adapter:
    """Load an adapter in the format of `peft` from a folder.

    Raises:
        ConfigError: it cannot be read, or not be used with this network.
    """
    key = f"handler.adapters: {name}"
    try:
        config = msgspec.json.decode((folder / _CONFIG).read_bytes(), type=dict[str, Any])
        data = (folder / _WEIGHTS).read_bytes()
        tensors = load(data)
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        raise ConfigError(
            f"{key}: {folder} needs {_CONFIG} and {_WEIGHTS}, as `peft` saves them: {error}"
        ) from None
    for field, plain in _PLAIN.items():
        if config.get(field, plain[0]) not in plain:
            raise ConfigError(
                f"{key}: `{field}` {config[field]!r} is not supported, only plain LoRA"
            )
    changes = {
        path: _change(network, path, pair, config, key)
        for path, pair in _pairs(tensors, key).items()
    }
    scales = sorted((path, change.scale) for path, change in changes.items())
    digest = hashlib.sha256(data + json.dumps(scales).encode()).hexdigest()[:16]
    return Adapter(digest, changes)


def _pairs(tensors: Mapping[str, Tensor], key: str) -> dict[str, dict[str, Tensor]]:
    """Return the tensors A and B by the path of their layer."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor_name, tensor in sorted(tensors.items()):
        match = _KEY.fullmatch(tensor_name)
        if match is None:
            raise ConfigError(f"{key}: `{tensor_name}` is not the change of a linear layer")
        pairs.setdefault(match[1], {})[match[2]] = tensor
    if not pairs:
        raise ConfigError(f"{key}: {_WEIGHTS} is empty")
    return pairs


def _change(
    network: PreTrainedModel, path: str, pair: Mapping[str, Tensor], config: Any, key: str
) -> _Change:
    decoder: Any = network.get_decoder()
    try:
        layer: Any = network.get_submodule(path)
    except AttributeError:
        raise ConfigError(f"{key}: this model has no layer `{path}`") from None
    # Embeddings of images are shared by sessions, and latents are expanded again in later steps.
    if path.endswith(".kv_b_proj") or all(layer is not one for one in decoder.modules()):
        raise ConfigError(f"{key}: `{path}` cannot be changed for a session alone")
    # GPT-2's layers have other names for their sizes.
    sizes = (
        (getattr(layer, "in_features", None) or getattr(layer, "nx", None)),
        (getattr(layer, "out_features", None) or getattr(layer, "nf", None)),
    )
    if len(pair) != 2 or (pair["A"].shape[1], pair["B"].shape[0]) != sizes:
        raise ConfigError(f"{key}: the change of `{path}` does not have the sizes {sizes}")
    down, up = (pair[which].to(network.device, network.dtype) for which in "AB")
    return _Change(down, up, _scale(config, path, down.shape[0]))


def _scale(config: Any, path: str, rank: int) -> float:
    """Return the factor of a layer's change, as `peft` computes it."""
    patterns = config.get("alpha_pattern") or {}
    found = (alpha for name, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({name})", path))
    alpha = next(found, config.get("lora_alpha", 8))
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _parent(network: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that has a layer, and the layer's name there."""
    parent, _, attribute = path.rpartition(".")
    return network.get_submodule(parent), attribute
