"""Where the sizes of a model come from: a folder, a `config.json`, or the hub.

Owns the download of a configuration; weights are never downloaded.
"""

from __future__ import annotations

import re
from pathlib import Path

from ts_stateful.config.sizes import ModelUnknown, TransformerSize, read_transformer

__all__ = ["find_model"]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find_model(name: str) -> TransformerSize:
    """The sizes of a model: in a folder, in a `config.json`, or on the hub.

    Raises:
        ModelUnknown: there is none, or it does not tell.
    """
    if Path(name).exists():
        return read_transformer(Path(name))
    if not _HUB_ID.fullmatch(name):
        raise ModelUnknown(f"{name} is neither a folder, nor a config.json, nor a hub id")
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415 - part of the server; seldom needed
    except ImportError:
        raise ModelUnknown(
            f"{name}: the hub is asked by huggingface_hub, which is not installed; download the model's config.json"
            " and give its path"
        ) from None
    try:
        return read_transformer(Path(hf_hub_download(name, "config.json")))
    except ModelUnknown:
        raise
    except (OSError, ValueError) as error:
        raise ModelUnknown(
            f"{name} is not here, and the hub does not give its config.json ({error}); download it and give its path"
        ) from None
