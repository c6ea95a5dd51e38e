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
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from ts_stateful.config.adapters import ADAPTER_WEIGHTS, read_adapter, tensor_name
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kv.host_copies import to_device

__all__ = ["Adapter", "Adapters", "load_adapter"]


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

    def __init__(self, network: PreTrainedModel) -> None:
        self._network = network
        self._device = network.device
        self._adapters: dict[str, Adapter] = {}
        # The layers themselves may be replaced by faster ones.
        self._layers: dict[str, tuple[nn.Module, str]] = {}

    def add(self, name: str, adapter: Adapter) -> None:
        """Add an adapter of this network."""
        self._adapters[name] = adapter
        self._layers |= {path: _parent(self._network, path) for path in adapter.changes}

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
    settings, layers, _ = read_adapter(name, folder)
    key = f"handler.adapters: {name}"
    try:
        data = (folder / ADAPTER_WEIGHTS).read_bytes()
        tensors = load(data)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{key}: {folder / ADAPTER_WEIGHTS}: {error}") from None
    changes = {
        path: _change(
            network, path, [tensors[tensor_name(path, which)] for which in "AB"], settings, key
        )
        for path in layers
    }
    scales = sorted((path, change.scale) for path, change in changes.items())
    digest = hashlib.sha256(data + json.dumps(scales).encode()).hexdigest()[:16]
    return Adapter(digest, changes)


def _change(
    network: PreTrainedModel, path: str, pair: Sequence[Tensor], config: Any, key: str
) -> _Change:
    decoder: Any = network.get_decoder()
    try:
        layer: Any = network.get_submodule(path)
    except AttributeError:
        raise ConfigError(f"{key}: this model has no layer `{path}`") from None
    # Embeddings of images are shared by sessions, and latents are expanded again in later steps.
    shared = (".kv_b_proj", ".cross_attn.k_proj", ".cross_attn.v_proj")
    if path.endswith(shared) or all(layer is not one for one in decoder.modules()):
        raise ConfigError(f"{key}: `{path}` cannot be changed for a session alone")
    # GPT-2's layers have other names for their sizes.
    sizes = (
        (getattr(layer, "in_features", None) or getattr(layer, "nx", None)),
        (getattr(layer, "out_features", None) or getattr(layer, "nf", None)),
    )
    if (pair[0].shape[1], pair[1].shape[0]) != sizes:
        raise ConfigError(f"{key}: the change of `{path}` does not have the sizes {sizes}")
    down, up = (part.to(network.device, network.dtype) for part in pair)
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
