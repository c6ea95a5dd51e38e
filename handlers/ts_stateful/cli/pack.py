"""The command `ts-stateful pack`: its options, its help, and its run."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ts_stateful.config.check import Finding, check_checkpoint, check_config, read_settings
from ts_stateful.config.check.finding import error, warning
from ts_stateful.config.check.template import check_template_file
from ts_stateful.config.edit import completed, edited
from ts_stateful.config.given_model import GivenModel, expand_home, find_given_model, is_hub_id
from ts_stateful.config.schema import Config, ConfigError, HandlerConfig, load_config
from ts_stateful.config.sizes import show_bytes
from ts_stateful.packing import Contents, write_archive
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES, Profile

__all__ = ["EPILOG", "add_options", "pack"]

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


def pack(options: argparse.Namespace) -> int:
    """Write an archive and print its path; return the exit status.

    Raises:
        ConfigError: the model or its configuration does not work.
        PackingFailed, OSError: the archive could not be written.
    """
    contents, findings = _contents(options)
    for finding in findings:
        sys.stderr.write(f"{finding}\n")
    if any(finding.severity == "error" for finding in findings):
        return 1
    as_folder = options.format == "no-archive"
    report = _show_progress if sys.stderr.isatty() else None
    before = signal.signal(signal.SIGTERM, _terminate)  # as Ctrl-C does, remove what is half made
    try:
        path = write_archive(contents, options.output, as_folder=as_folder, report=report)
    finally:
        signal.signal(signal.SIGTERM, before)
    if report is not None:
        sys.stderr.write("\r\x1b[K")
    sys.stdout.write(f"{path}\n")
    return 0


def _contents(options: argparse.Namespace) -> tuple[Contents, list[Finding]]:
    """Return what is packed, and what the rules of configurations find in it."""
    if options.model is None and options.config is None and options.files is None:
        raise ConfigError("name the MODEL, or a --config whose `handler.model` names it")
    model = None if options.model is None else find_given_model(options.model)
    if options.files is not None and not options.files.is_dir():
        raise ConfigError(f"no such folder: {options.files}")
    document = _document(options, model)
    config = load_config(document)
    findings = check_config(config)
    if options.files is not None and config.state is None:
        findings += check_template_file(config.handler, options.files)
    if model is None:
        findings += _check_packed(config, options.files)
    else:
        model.require_states(config)
    if model is not None and model.folder is not None and config.state is None:
        has_template = config.handler.chat_template is not None
        findings += check_checkpoint(model.folder, has_template=has_template)
    return Contents(options.name, options.version, config, document, model, options.files), findings


def _check_packed(config: Config, files: Path | None) -> Iterator[Finding]:
    """Find a `handler.model` that the server would not find, where no MODEL is packed."""
    name = config.engine.model
    path = name.partition(":")[0]  # of file.py:Class
    if expand_home(path).is_absolute() or (files is not None and (files / path).exists()):
        return
    cure = "name the MODEL to pack, or the folder that has it as --files"
    may_be_id = name != HandlerConfig().model and is_hub_id(
        name if "/" in name else f"owner/{name}"
    )
    if config.state is not None or not may_be_id:
        yield error("handler.model", f"{name} is not packed, and no hub id like owner/name", cure)
    elif "/" not in name:
        yield warning("handler.model", f"{name} is not packed, but taken for a hub id", cure)


def _document(options: argparse.Namespace, model: GivenModel | None) -> dict[str, Any]:
    """Return the configuration to pack."""
    beside, setting = (None, None) if model is None else (model.config, model.setting)
    document = read_settings(options.config or beside)
    load_config(document)  # or `edited` would stumble over a wrong type
    profile = Profile(options.profile) if options.profile else None
    return completed(edited(document, model=setting, profile=profile))


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _show_progress(num_bytes: int, total: int) -> None:
    done = min(num_bytes, total)
    bar = "#" * round(30 * done / max(total, 1))
    sys.stderr.write(f"\rpacking [{bar:-<30}] {show_bytes(done)} of {show_bytes(total)}\x1b[K")
    sys.stderr.flush()
