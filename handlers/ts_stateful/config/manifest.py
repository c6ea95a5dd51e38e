"""The manifest of a model archive, which torch-model-archiver writes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import NamedTuple

from ts_stateful.config.schema import ConfigError

__all__ = ["CONFIG", "MANIFEST", "Manifest", "read_manifest"]

MANIFEST = Path("MAR-INF") / "MANIFEST.json"
CONFIG = "model-config.yaml"


class Manifest(NamedTuple):
    """The name and the version of a packed model, and the file in the archive that has its configuration."""

    name: str
    version: str
    config_file: str


def read_manifest(archive: Path) -> Manifest:
    """Read the manifest of a .mar file, or of the folder of an archive.

    Raises:
        ConfigError: it is no archive, or a damaged one.
    """
    try:
        if archive.is_dir():
            text = (archive / MANIFEST).read_bytes()
        else:
            with zipfile.ZipFile(archive) as file:
                text = file.read(str(MANIFEST))
        model = dict(json.loads(text)["model"])
        config_file = str(model.get("configFile", CONFIG))
        return Manifest(str(model["modelName"]), str(model["modelVersion"]), config_file)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{archive}: not an archive of torch-model-archiver: {error}") from None
