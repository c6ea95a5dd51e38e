"""The identity of a model archive, which does not depend on the folder that it is unpacked to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ts_stateful.config.manifest import CONFIG, MANIFEST, read_manifest
from ts_stateful.config.schema import ConfigError

__all__ = ["content_digest", "identity_of"]

# TorchServe 0.12 names the folder of each unpacked .mar like this, with a new name every time.
_UNPACKED = re.compile("[0-9a-f]{32}")
_IDENTITY = "MAR-INF/ts-stateful-identity"
_WHOLE_BYTES = 1 << 20  # of larger files, samples are read
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def identity_of(model_dir: Path, model: str) -> str:
    """Return what stays the same if an archive is registered again: its engine is found and does not load the model twice.

    The identity covers the content of the archive and the time of packing. It is kept in the folder, so files that are written
    there later do not change it. Weights outside of the archive may change, so a model with such weights is identified by its
    folder. So is a model that TorchServe has not unpacked.
    """
    inside = (model_dir / model.partition(":")[0]).resolve()
    is_whole = inside.exists() and inside.is_relative_to(model_dir.resolve())
    if not is_whole or model_dir.is_symlink() or not _UNPACKED.fullmatch(model_dir.name):
        return str(model_dir)
    kept = model_dir / _IDENTITY
    try:
        if not kept.exists():
            packed = (model_dir / MANIFEST).read_bytes()
            kept.write_text(hashlib.sha256(packed).hexdigest() + content_digest(model_dir))
        return kept.read_text()
    except OSError:
        return str(model_dir)


def content_digest(folder: Path) -> str:
    """Return a digest of an archive's files, whatever its name, its place and its time of packing.

    Large files count by their size and samples: they are weights, and other weights differ everywhere. The configuration does
    not count, because it is compared key by key. The archiver's metadata does not count either.
    """
    try:
        config_file = read_manifest(folder).config_file
    except ConfigError:
        config_file = CONFIG
    digest, ignored = hashlib.sha256(), {"MAR-INF", "__pycache__", config_file}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if ignored & set(name.parts) or not path.is_file():
            continue
        digest.update(f"{name} {path.stat().st_size};".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:16]


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            yield file.read()
            return
        for index in range(_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
            yield file.read(_SAMPLE_BYTES)
