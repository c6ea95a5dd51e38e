"""Digests of what gives the token ids and embeddings of a session their meaning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ts_stateful.language.parallel.weights import elements

__all__ = ["fingerprint", "weights_digest"]

_READERS = {"images": "image_processor", "audio": "feature_extractor"}
_ENDS = 8  # elements from either end of every parameter
_IGNORED = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})


def fingerprint(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    owner: Any,
    kinds: Collection[str] = (),
    image_tiling: str | None = None,
) -> dict[str, str]:
    """Return digests by part: model, weights, dtype, tokenizer, template, and of `kinds` of media processor and tiling.

    Two servers can continue each other's sessions if the digests agree. They cover content, never paths, which differ between
    servers.
    """
    parts = {
        "model": _digest(_without(network.config.to_dict())),
        "weights": weights_digest(network),
        "dtype": str(network.dtype).removeprefix("torch."),
        "tokenizer": _digest(tokenizer.backend_tokenizer.to_str()),
        "template": _digest(str(getattr(owner, "chat_template", None))),
    }
    if kinds:
        readers = [_without(getattr(owner, _READERS[kind]).to_dict()) for kind in kinds]
        parts["processor"] = _digest(readers if len(readers) > 1 else readers[0])
    if image_tiling is not None:
        parts["tiling"] = image_tiling
    return parts


def weights_digest(network: PreTrainedModel) -> str:
    """Return a digest of both ends of every parameter: fast, and further training changes those too.

    Read it before weights are rearranged for a device. It is computed in float32, which represents the other dtypes exactly.
    That of a split model is the same.
    """
    digest = hashlib.sha256()
    parts: list[Tensor] = []
    split: dict[int, DTensor] = {}  # over several devices, by their places among the parts
    for name, parameter in network.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)};".encode())
        for plain in _plain_tensors(parameter.detach()):
            if isinstance(plain, DTensor):
                split[len(parts)] = plain
                parts.append(torch.empty(0))
                continue
            flat = plain.reshape(-1)
            parts.append(torch.cat([flat[:_ENDS], flat[-_ENDS:]]).float())
    places = [
        [*range(whole.numel())[:_ENDS], *range(whole.numel())[-_ENDS:]] for whole in split.values()
    ]
    for at, ends in zip(split, elements(list(split.values()), places), strict=True):
        parts[at] = ends
    digest.update(torch.cat(parts).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _plain_tensors(tensor: Any) -> Iterator[Tensor]:
    """Yield the tensors that a quantised one consists of, or the tensor itself."""
    if (
        type(tensor) is Tensor
        or isinstance(tensor, DTensor)
        or not hasattr(tensor, "__tensor_flatten__")
    ):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _plain_tensors(getattr(tensor, name))


def _without(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: _without(v) for k, v in document.items() if k not in _IGNORED}
    return document


def _digest(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
