"""The parser of YAML files. It refuses what `yaml` takes in silence, or cannot report."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["parse_yaml"]


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


def parse_yaml(text: str) -> Any:
    """Parse a document.

    Raises:
        yaml.YAMLError: it is not YAML, has a key twice, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
