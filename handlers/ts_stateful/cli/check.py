"""The command `ts-stateful check`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ts_stateful.cli.terminal import Terminal
from ts_stateful.config.check import check_file, read_settings, summary
from ts_stateful.config.edit import completed
from ts_stateful.config.given_model import find_given_model, find_model
from ts_stateful.config.schema import load_config

__all__ = ["check"]


def check(path: Path, model_name: str | None, *, as_json: bool = False) -> bool:
    """Print the findings of a file, and its capacity if it works. Return False if there is an error.

    Raises:
        ModelUnknown: the sizes of `model_name` cannot be found.
        ConfigError: it is a class, of no file or without states.
    """
    terminal = Terminal(sys.stdout)
    model = program = None
    if model_name is not None and Path(model_name).suffix.startswith(".py"):
        program = find_given_model(model_name)
    elif model_name is not None:
        model = find_model(model_name)
    findings = check_file(path, model, None if model_name is None else Path(model_name))
    works = all(finding.severity != "error" for finding in findings)
    given = read_settings(path) if works else {}
    document = completed(given) if works else {}
    config = load_config(document) if works else None
    if config is not None and program is not None:
        program.require_states(config)
    holds = [] if config is None else summary(config, model)
    added = {key: value for key, value in document.items() if key not in given}
    if as_json:
        found: dict[str, Any] = {"ok": works, "findings": [asdict(each) for each in findings]}
        found |= {"added": added, "holds": holds}
        terminal.line(json.dumps(found, ensure_ascii=False))
        return works
    for finding in findings:
        terminal.line(f"{finding.severity}: {finding.key}: {finding.message}")
        terminal.line(f"  cure: {finding.cure}")
    if added:
        keys = ", ".join(f"{key}: {json.dumps(value)}" for key, value in added.items())
        terminal.line(f"added by `ts-stateful pack` and `serve`, since it is left out: {keys}")
    for line in holds:
        terminal.line(f"holds: {line}")
    if works:
        terminal.line("ok")
    return works
