"""The command `ts-stateful check`."""

from __future__ import annotations

import sys
from pathlib import Path

from ts_stateful.cli.models import find_model
from ts_stateful.cli.terminal import Terminal
from ts_stateful.config.check import Finding, check_file, read_document, summary
from ts_stateful.config.schema import load_config

__all__ = ["check"]


def check(path: Path, model_name: str | None) -> bool:
    """Print the findings of a file, and its capacity if it works. Return False if there is an error.

    Raises:
        ModelUnknown: the sizes of `model_name` cannot be found.
    """
    terminal = Terminal(sys.stdout)
    model = find_model(model_name) if model_name is not None else None
    findings = check_file(path, model, None if model_name is None else Path(model_name))
    for finding in findings:
        terminal.line(f"{finding.severity}: {finding.key}: {finding.message}")
        terminal.line(f"  cure: {finding.cure}")
    if any(finding.severity == "error" for finding in findings):
        return False
    document = read_document(path)
    if not isinstance(document, Finding):
        for line in summary(load_config(document), model):
            terminal.line(f"holds: {line}")
    terminal.line("ok")
    return True
