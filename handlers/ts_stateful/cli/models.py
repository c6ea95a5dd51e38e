"""Sizes of a model in a folder, in a `config.json`, or on the hub. Weights are never downloaded."""

from __future__ import annotations

from pathlib import Path

from ts_stateful.config.given_model import is_hub_id
from ts_stateful.config.sizes import ModelUnknown, TransformerSize, read_transformer

__all__ = ["find_model"]


def find_model(name: str) -> TransformerSize:
    """Find the sizes of a model by a path or a hub id.

    Raises:
        ModelUnknown: there is no such model, or its configuration lacks the sizes.
    """
    if Path(name).exists():
        return read_transformer(Path(name))
    if not is_hub_id(name):
        raise ModelUnknown(
            f"{name} is neither a folder, nor a config.json, nor a hub id (owner/name)"
        )
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415 - installed with the server
    except ImportError:
        raise ModelUnknown(
            f"huggingface_hub is not installed, so {name} cannot be downloaded; download its config.json and give the path"
        ) from None
    try:
        return read_transformer(Path(hf_hub_download(name, "config.json")))
    except ModelUnknown:
        raise
    except (OSError, ValueError) as error:
        raise ModelUnknown(
            f"the hub does not return the config.json of {name} ({error}); download it and give its path"
        ) from None
