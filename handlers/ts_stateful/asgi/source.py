"""The forms in which a model is given to the front: an archive, a folder, or the id of a model on the hub."""

from __future__ import annotations

import re
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ts_stateful.config.check import read_settings
from ts_stateful.config.edit import completed, edited
from ts_stateful.config.given_model import expand_home, find_given_model
from ts_stateful.config.manifest import CONFIG, MANIFEST, read_manifest
from ts_stateful.config.schema import ConfigError
from ts_stateful.process.private import make_private

__all__ = ["ModelSource", "open_source", "open_sources"]

_ARCHIVES = {".mar", ".zip"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ModelSource(Struct, frozen=True):
    """A model to serve: `folder` has its files, and `document` is its parsed configuration."""

    name: str
    version: str
    folder: str
    document: dict[str, Any]


def open_sources(
    given: Sequence[str], folder: Path, *, name: str | None, config: Path | None
) -> tuple[ModelSource, ...]:
    """Return the models of a server. `name` and `config` are for the first one, which is else named by its archive, or `chat`.

    Raises:
        ConfigError: see `open_source`, or two have the same name.
    """
    first, *others = given
    sources = [open_source(first, folder, name=name, config=config)]
    sources += [open_source(one, folder, unnamed=Path(one).name) for one in others]
    names = [source.name for source in sources]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two models are named {twice}; pack one with another name (`ts-stateful pack --name`), or use --name"
        )
    return tuple(sources)


def open_source(
    given: str,
    folder: Path,
    *,
    name: str | None = None,
    config: Path | None = None,
    unnamed: str = "chat",
) -> ModelSource:
    """Return the model that `given` names; an archive is unpacked below `folder`.

    `config` replaces the configuration inside, and `name` the archive's name. A model that is no archive is else `unnamed`.

    Raises:
        ConfigError: it is no model, or its configuration cannot be read.
    """
    path = expand_home(given)
    if path.is_file() and (path.suffix in _ARCHIVES or zipfile.is_zipfile(path)):
        return _archive(_unpacked(path, folder), name, config)
    if (path / MANIFEST).is_file():
        return _archive(path.resolve(), name, config)
    if given and path.is_dir():  # not the working directory for an unset variable
        return _folder(path.resolve(), name or unnamed, config)
    model = find_given_model(given)
    document = edited(completed(read_settings(config or model.config)), model=model.setting)
    inside = make_private(folder / uuid.uuid4().hex) if model.file is None else model.file.parent
    return ModelSource(_checked(name or unnamed), "1.0", str(inside.resolve()), document)


def _unpacked(path: Path, folder: Path) -> Path:
    # Like TorchServe's, this name marks an archive, which is the same model wherever it is unpacked.
    target = make_private(folder / uuid.uuid4().hex)
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(target)
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise ConfigError(f"{path}: cannot be unpacked: {error}") from None
    if not (target / MANIFEST).is_file():
        raise ConfigError(f"{path}: not an archive of torch-model-archiver: it has no {MANIFEST}")
    return target


def _archive(folder: Path, name: str | None, config: Path | None) -> ModelSource:
    packed = read_manifest(folder)
    document = completed(read_settings(config or folder / packed.config_file))
    return ModelSource(_checked(name or packed.name), packed.version, str(folder), document)


def _folder(folder: Path, name: str, config: Path | None) -> ModelSource:
    inside = folder / CONFIG
    is_model = (folder / "config.json").is_file()
    if config is None and inside.is_file():
        config = inside
    if config is None and not is_model:
        raise ConfigError(f"{folder}: has neither {CONFIG} nor a model's config.json")
    document = completed(read_settings(config))
    if is_model:
        document = edited(document, model=str(folder))
    return ModelSource(_checked(name), "1.0", str(folder), document)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r}: not a name of a model; use letters, digits and . _ -")
    return name
