"""What tells one model archive from another, where each is unpacked.

Owns that alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["content_digest", "identity_of"]

# How TorchServe 0.12 calls the folder of a .mar, each time another one.
_UNPACKED = re.compile("[0-9a-f]{32}")
_MANIFEST, _IDENTITY = "MAR-INF/MANIFEST.json", "MAR-INF/ts-stateful-identity"
_WHOLE_BYTES = 1 << 20  # a larger file is known by samples
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def identity_of(model_dir: Path, model: str) -> str:
    """What stays the same if the same archive is registered again: so its engine is found, which need not load the model twice.

    That is what is in the archive, and when it was packed. It is looked at once and kept beside it: what is written to the
    folder later makes no other model of it. Where the weights of `handler.model` lie elsewhere, they may be others by then:
    such a model is known by its folder, and so is one that TorchServe has not unpacked.
    """
    inside = (model_dir / model.partition(":")[0]).resolve()
    is_whole = inside.exists() and inside.is_relative_to(model_dir.resolve())
    if not is_whole or model_dir.is_symlink() or not _UNPACKED.fullmatch(model_dir.name):
        return str(model_dir)
    kept = model_dir / _IDENTITY
    try:
        if not kept.exists():
            packed = (model_dir / _MANIFEST).read_bytes()
            kept.write_text(hashlib.sha256(packed).hexdigest() + content_digest(model_dir))
        return kept.read_text()
    except OSError:
        return str(model_dir)


def content_digest(folder: Path) -> str:
    """What an archive has in it, whatever it is called, wherever and whenever it was unpacked.

    Large files count by their size and samples, as they are weights: others differ everywhere. The configuration is compared
    key by key, so it does not count, and neither does what the archiver writes about the archive.
    """
    digest = hashlib.sha256()
    ignored = {"MAR-INF", "__pycache__", _config_file(folder)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if ignored & set(name.parts) or not path.is_file():
            continue
        digest.update(f"{name} {path.stat().st_size};".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:16]


def _config_file(folder: Path) -> str:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return str(manifest["model"]["configFile"])
    except (OSError, ValueError, KeyError, TypeError):
        return "model-config.yaml"


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            yield file.read()
            return
        for index in range(_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
            yield file.read(_SAMPLE_BYTES)
