"""The forms in which a model is given to be packed or served."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ts_stateful.config.manifest import CONFIG
from ts_stateful.config.schema import Config, ConfigError
from ts_stateful.config.sizes import ModelUnknown, TransformerSize, read_transformer

__all__ = [
    "GivenModel",
    "expand_home",
    "find_given_model",
    "find_model",
    "is_hub_id",
    "resolve_model",
]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_CLASS = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class GivenModel:
    """A model. `setting` is its `handler.model` in the archive; `folder` or `file` is packed with it.

    `config` is the configuration that stands beside it, if there is one.
    """

    setting: str
    folder: Path | None = None
    file: Path | None = None
    config: Path | None = None

    def require_states(self, config: Config) -> None:
        """Raise ConfigError if a class is given and its configuration declares no states."""
        if self.file is not None and config.state is None:
            raise ConfigError(
                f"{self.setting} has no states: declare `handler.inputs`, `handler.outputs` and `handler.states` in its"
                " configuration, see docs/state.md"
            )


def find_given_model(given: str) -> GivenModel:
    """Return the model that `given` names: a folder, the id of a model on the hub, or `module.py:Class`.

    Raises:
        ConfigError: it is none of them.
    """
    path = expand_home(given)
    if given and path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"{given} has no config.json: not a model's folder; `pack --files` takes programs and weights"
            )
        return GivenModel("model", folder=path, config=_beside(path))
    if match := _CLASS.fullmatch(given):
        file = expand_home(match["file"])
        if not file.is_file():
            raise ConfigError(f"no such file: {file}")
        return GivenModel(f"{file.name}:{match['name']}", file=file, config=_beside(file.parent))
    if path.suffix == ".py":
        raise ConfigError(f"{given} names no class: write {given}:Class")
    if path.is_file():
        raise ConfigError(
            f"{given} is a file: name a folder with config.json and safetensors, a hub id, or module.py:Class"
        )
    if is_hub_id(given):
        return GivenModel(given)
    raise ConfigError(
        f"{given or repr(given)}: no such file or folder, and neither a hub id like owner/name nor a class like module.py:Class"
    )


def find_model(name: str) -> TransformerSize:
    """Find the sizes of a model by a path or a hub id. Weights are never downloaded.

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


def resolve_model(name: str, model_dir: Path) -> str:
    """Return the folder of `handler.model` (in the archive first, then as a path), or else the hub id unchanged.

    Raises:
        ConfigError: it begins with the home of a user that there is not.
    """
    for folder in (model_dir / name, expand_home(name)):
        if (folder / "config.json").is_file():
            return str(folder)
    return name


def is_hub_id(name: str) -> bool:
    """Return True for `owner/name`; build/chat.mar is an archive that is missing."""
    return _HUB_ID.fullmatch(name) is not None and not name.endswith(".mar")


def expand_home(path: str) -> Path:
    """Return a path whose first part may be `~` or `~user`.

    Raises:
        ConfigError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = path.partition("/")[0]
        raise ConfigError(f"{path}: {user} has no home here; write the whole path") from None


def _beside(folder: Path) -> Path | None:
    config = folder / CONFIG
    return config if config.is_file() else None
