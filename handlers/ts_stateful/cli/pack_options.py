"""The options of `ts-stateful pack`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ts_stateful.protocol.profile import TORCHSERVE_PROFILES

__all__ = ["EPILOG", "add_options"]

EPILOG = """\
The handler, the configuration and the model go into one archive, which `ts-stateful serve`, a plain `torchserve --start` and
SageMaker's PyTorch container serve. A folder and the files of a class are packed; a hub id is written into the configuration,
and the server downloads the model. The configuration is checked first. Keys of TorchServe that it leaves out get safe values.

examples:
  ts-stateful pack /models/llava-1.5-7b-hf
  ts-stateful pack llava-hf/llava-1.5-7b-hf --name llava --format no-archive
  ts-stateful pack forecaster.py:Forecaster --config model-config.yaml
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add = parser.add_argument
    text = "a model's folder, a hub id (owner/name), or module.py:Class (default: what the configuration says)"
    add("model", nargs="?", metavar="MODEL", help=text)
    text = "the configuration (default: model-config.yaml beside the model, or safe values)"
    add("--config", type=_file, metavar="FILE", help=text)
    text = "pack what is in it too: programs, weights, adapters"
    add("--files", type=Path, metavar="FOLDER", help=text)
    add("--name", type=_name, default="chat", help="name of the archive (default: %(default)s)")
    add("--version", default="1.0", help="of the model (default: %(default)s)")
    profiles = [profile.value for profile in TORCHSERVE_PROFILES]
    add("--profile", choices=profiles, help="default: what the configuration says, or continuous")
    text = "default: a .mar file; no-archive: a folder, for SageMaker or a large model"
    add("--format", choices=["default", "no-archive"], default="default", help=text)
    text = "where the archive goes (default: %(default)s)"
    add("--output", type=Path, default=Path("build"), metavar="FOLDER", help=text)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"not a model name: {text!r}; use letters, digits and . _ -"
        )
    return text


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"no such configuration: {text}")
    return Path(text)
