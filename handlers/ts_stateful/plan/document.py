"""The planned file: a table of the arithmetic as a comment, and the keys."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from ts_stateful.config.check import check_config
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.keys import PROFILE_KEYS, frontend_part, handler_part

__all__ = ["Plan", "make_plan"]

_WIDTH = 108


class Plan(NamedTuple):
    """The text of a `model-config.yaml`, and warnings about it."""

    text: str
    warnings: list[str]


def make_plan(asked: Asked, kept: Mapping[str, Any], command: str) -> Plan:
    """Make the configuration. `kept` is a configuration whose other keys stay; `command` is written into the file.

    Raises:
        PlanRefused: the request cannot work, or the kept keys do not.
    """
    frontend, handler = frontend_part(asked), handler_part(asked)
    replaced = {*frontend.keys, *PROFILE_KEYS.values(), "handler"}
    document = frontend.keys | {key: kept[key] for key in kept if key not in replaced}
    document["handler"] = {**(kept.get("handler") or {}), **handler.keys}
    text = yaml.safe_dump(document, sort_keys=False, width=_WIDTH, allow_unicode=True)
    try:
        findings = check_config(load_config(yaml.safe_load(text)), asked.model)
    except ConfigError as error:
        raise PlanRefused(f"the keys of --config do not work: {error}") from None
    if errors := [str(finding) for finding in findings if finding.severity == "error"]:
        raise PlanRefused(f"the keys of --config do not work: {'; '.join(errors)}")
    warnings = [f"{finding.key}: {finding.message}; {finding.cure}" for finding in findings]
    table = [("made by", command), *frontend.table, *handler.table]
    return Plan(_comment(table) + text, [*handler.warnings, *warnings])


def _comment(table: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in table)
    text = ""
    for name, value in table:
        # A path in the command may have characters that end a line.
        harmless = "".join(character if character.isprintable() else "?" for character in value)
        lines = textwrap.wrap(harmless, _WIDTH, break_long_words=False, break_on_hyphens=False)
        text += f"# {name:{width}}  " + f"\n# {'':{width}}  ".join(lines) + "\n"
    return text
