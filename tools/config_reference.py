#!/usr/bin/env python3
"""The tables of docs/configuration.md, made from the schema.

`python tools/config_reference.py` writes them; `--check` exits with 1 if they are out of date.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta, Struct

from ts_stateful.config import access, schema
from ts_stateful.config.edit import completed
from ts_stateful.config.limits import ImplicitConfig, LimitsConfig, Quota, QuotasConfig
from ts_stateful.protocol.declarations import Input, Output, State

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
_TENSORS = (Input, Output, State)
_TYPES = {int: "integer", float: "number", str: "text", bool: "true or false", dict: "mapping"}
# The tables in the order of the page: its marker, the prefix of its keys, and the struct whose fields it lists.
_TABLES: tuple[tuple[str, str, type[Struct]], ...] = (
    ("frontend", "", schema.FrontendConfig),
    ("engine", "handler.", schema.EngineConfig),
    ("limits", "handler.limits.", LimitsConfig),
    ("access", "handler.", access.AccessConfig),
    ("quotas", "handler.quotas.", QuotasConfig),
    ("quota", "handler.quotas.", Quota),
    ("header", "handler.auth.", access.HeaderAuth),
    ("jwt", "handler.auth.", access.JwtAuth),
    ("language", "handler.", schema.HandlerConfig),
    ("implicit", "handler.implicitSessions.", ImplicitConfig),
    ("media", "handler.media.", schema.MediaConfig),
    ("store", "handler.store.", schema.StoreConfig),
    ("recurrent", "handler.", schema.StateConfig),
)


class Key(NamedTuple):
    """One setting: its path in model-config.yaml, its type and range, its default, its meaning."""

    name: str
    values: str
    default: str
    meaning: str


def keys(kind: type[Struct], prefix: str) -> list[Key]:
    """List the settings of a struct in the order of its source, without those of its base."""
    written = completed({}) if kind is schema.FrontendConfig else {}
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    found = []
    for name, meaning in _meanings(kind).items():
        field = fields[name]
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if not isinstance(default, Struct):  # which has a table of its own
            values, shown = _values(hints[name]), _yaml(default)
            if written.get(field.encode_name, default) != default:
                shown = f"{_yaml(written[field.encode_name])}; TorchServe's own: {shown}"
            found.append(Key(prefix + field.encode_name, values, shown, meaning))
    return found


def all_keys() -> list[Key]:
    """List the settings of all tables."""
    return [key for _, prefix, kind in _TABLES for key in keys(kind, prefix)]


def _meanings(kind: type[Struct]) -> dict[str, str]:
    """Read the docstring after each field of a class."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = inspect.cleandoc(str(following.value.value))
            found[node.target.id] = " ".join(text.split())
    return found


def _values(hint: Any) -> str:
    """Describe the type and range of a field."""
    if get_origin(hint) is Annotated:
        kind, *metas = get_args(hint)
        bounds = [text for meta in metas if isinstance(meta, Meta) for text in _bounds(meta)]
        return " ".join([_values(kind), *bounds])
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return f"list of {'mappings' if inner in _TENSORS else _values(inner)}"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_values(kind) for kind in get_args(hint) if kind is not type(None))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return f"`{{mode: {hint.__struct_config__.tag}, ...}}`"
    return _TYPES[get_origin(hint) or hint]


def _bounds(meta: Meta) -> list[str]:
    texts = {"from": meta.ge, "above": meta.gt, "to": meta.le}
    found = [f"{word} {bound:,}" for word, bound in texts.items() if bound is not None]
    return [*found, f"like `{meta.pattern}`"] if meta.pattern else found


def _yaml(value: Any) -> str:
    """Write a default as it would stand in the file; nothing for what is unset."""
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None or value in ((), {}):
        return ""
    text = yaml.safe_dump(
        list(value) if isinstance(value, tuple) else value, default_flow_style=True
    )
    return f"`{text.removesuffix(chr(10)).removesuffix('...').strip()}`"


def _table(kind: type[Struct], prefix: str) -> str:
    rows = [f"| `{k.name}` | {k.values} | {k.default} | {k.meaning} |" for k in keys(kind, prefix)]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])


def page(text: str) -> str:
    """Return the page's text with its tables made again."""
    for marker, prefix, kind in _TABLES:
        before, start, rest = text.partition(
            f"<!-- {marker}: made by tools/config_reference.py -->\n"
        )
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise SystemExit(f"{PAGE}: no place for the table {marker!r}; write its two comments")
        text = f"{before}{start}\n{_table(kind, prefix)}\n\n{end}{after}"
    return text


def main() -> int:
    """Write the page, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if options.check:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
