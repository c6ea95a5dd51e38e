#!/usr/bin/env python3
"""The parts of the Helm chart that are made from other files: copies, and the table of values.

Helm reads no file outside of a chart. `make chart` writes the parts, and a test compares them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "ts-stateful"
PAGE = CHART / "README.md"
# A file of the chart, and the one that it is a copy of.
COPIES = {
    CHART / "files" / name: ROOT / source
    for name, source in {
        "alerts.yml": "deploy/observability/prometheus/alerts.yml",
        "recording.yml": "deploy/observability/prometheus/recording.yml",
        "dashboard.json": "deploy/observability/grafana/dashboards/ts-stateful.json",
        "haproxy.cfg": "deploy/haproxy/haproxy.cfg",
        "config.properties": "config.properties",
        "log4j2.xml": "log4j2.xml",
    }.items()
}
_BEGIN = "<!-- values: made by tools/chart.py -->\n"
_END = "<!-- end -->\n"


def rows(schema: dict[str, Any], values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a row of the table for each value that has no values of its own, in the order of values.yaml."""
    for name, value in values.items():
        described = schema["properties"][name]
        is_group = value and described.get("additionalProperties") is False
        if is_group and "requests" not in value:
            yield from rows(described, value, f"{prefix}{name}.")
            continue
        default = json.dumps(value, ensure_ascii=False) if value not in ("", {}, []) else ""
        shown = f"`{default}`" if default else ""
        yield f"| `{prefix}{name}` | {shown} | {described['description']} |\n"


def page(text: str) -> str:
    """Return the page with its table."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    table = "".join(
        ["\n| value | default | meaning |\n|---|---|---|\n", *rows(schema, values), "\n"]
    )
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{table}{_END}{after}"


def main() -> int:
    """Write the copies and the table."""
    for copy, source in COPIES.items():
        copy.write_bytes(source.read_bytes())
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
