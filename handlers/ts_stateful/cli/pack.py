"""The command `ts-stateful pack`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ts_stateful.config.check import Finding, check_checkpoint, check_config, read_document
from ts_stateful.config.check.finding import error, warning
from ts_stateful.config.check.template import check_template_file
from ts_stateful.config.edit import completed, edited
from ts_stateful.config.given_model import GivenModel, expand_home, find_given_model, is_hub_id
from ts_stateful.config.schema import Config, ConfigError, HandlerConfig, load_config
from ts_stateful.config.sizes import show_bytes
from ts_stateful.packing import Contents, write_archive
from ts_stateful.protocol.profile import Profile

__all__ = ["pack"]


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
    path = options.config or beside
    document = {} if path is None else read_document(path)
    if isinstance(document, Finding):
        raise ConfigError(document.reason)
    document = document or {}
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
