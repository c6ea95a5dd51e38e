"""The manifest of an archive."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from ts_stateful.config.schema import ConfigError

__all__ = ["MANIFEST", "name_in_archive"]

MANIFEST = Path("MAR-INF") / "MANIFEST.json"


def name_in_archive(archive: Path) -> str:
    """Return the name with which a .mar file, or the folder of an archive, was packed.

    Raises:
        ConfigError: it is no archive, or a damaged one.
    """
    try:
        if archive.is_dir():
            text = (archive / MANIFEST).read_bytes()
        else:
            with zipfile.ZipFile(archive) as file:
                text = file.read(str(MANIFEST))
        return str(json.loads(text)["model"]["modelName"])
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{archive}: not an archive of torch-model-archiver: {error}") from None
