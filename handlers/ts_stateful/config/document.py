"""The parsers of YAML and JSON files. They refuse what the libraries take in silence, or cannot report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

__all__ = ["parse_yaml", "read_json"]

_Document = TypeVar("_Document")


class _Loader(yaml.SafeLoader):
    """The safe loader, without keys that stand twice in a mapping; `yaml` drops the first one with all that is below it."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in seen:
                raise yaml.YAMLError(
                    f"the key {key.value!r} stands twice, in lines {seen[name]} and {line}"
                )
            seen[name] = line
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            line, kind = node.start_mark.line + 1, node.tag.rpartition(":")[2]
            raise yaml.YAMLError(
                f"{str(node.value)[:40]!r} in line {line} is no {kind} ({error})"
            ) from None


def parse_yaml(text: str) -> Any:
    """Parse a document.

    Raises:
        yaml.YAMLError: it is not YAML, has a key twice or a malformed value, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def read_json(path: Path, kind: type[_Document]) -> _Document:
    """Read a file of JSON, and convert it to `kind`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON of this kind, or is nested too deeply.
    """
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
