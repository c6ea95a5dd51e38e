"""What the token ids and embeddings of a session mean something to.

Owns the names of the parts by which two servers know that they can go on with each other's sessions. Content counts, never a
path: an archive is unpacked somewhere else every time. Knows nothing of stores.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["fingerprint", "weights_digest"]

_ENDS = 8  # elements from either end of every parameter
_NO_MATTER = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})


def fingerprint(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, owner: Any
) -> dict[str, str]:
    """Digests by part: model, weights, dtype, tokenizer, template, processor (none where nothing is seen)."""
    parts = {
        "model": _digest(_without(network.config.to_dict())),
        "weights": weights_digest(network),
        "dtype": str(network.dtype).removeprefix("torch."),
        "tokenizer": _digest(tokenizer.backend_tokenizer.to_str()),
        "template": _digest(str(getattr(owner, "chat_template", None))),
    }
    if owner is not tokenizer:
        parts["processor"] = _digest(_without(owner.image_processor.to_dict()))
    return parts


def weights_digest(network: PreTrainedModel) -> str:
    """A digest of the ends of every parameter: weights that were trained further differ there too, and it takes no time.

    What is read is read before weights are rearranged for a device, and in float32, which holds the others exactly.
    """
    digest = hashlib.sha256()
    parts = []
    for name, parameter in network.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)};".encode())
        flat = parameter.detach().reshape(-1)
        parts += [flat[:_ENDS].float(), flat[-_ENDS:].float()]
    digest.update(torch.cat(parts).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _without(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: _without(v) for k, v in document.items() if k not in _NO_MATTER}
    return document


def _digest(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
