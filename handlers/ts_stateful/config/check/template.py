"""The rules for chat templates: they parse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import HandlerConfig

__all__ = ["check_chat_template", "check_template", "check_template_file"]

_KEY, _FILE = "handler.chatTemplate", ".jinja"
# Marks of the parts that are trained on, a tag of `transformers` alone.
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(?=\s*[-+]?%\})")


def check_chat_template(handler: HandlerConfig) -> Iterator[Finding]:
    """Find a template in a configuration that does not parse."""
    if handler.chat_template is not None and not handler.chat_template.endswith(_FILE):
        yield from check_template(_KEY, "it", handler.chat_template)


def check_template_file(handler: HandlerConfig, folder: Path) -> Iterator[Finding]:
    """Find the file of a configuration's template that does not parse, or is not in `folder`."""
    name = handler.chat_template or ""
    if name.endswith(_FILE) and (file := folder / name).is_file():
        yield from check_template(_KEY, str(file), file)
    elif name.endswith(_FILE):
        cure = "ignore this if it is in the archive (`ts-stateful pack --files`)"
        yield warning(_KEY, f"{name} is no file here", cure)


def check_template(key: str, place: str, template: object) -> Iterator[Finding]:
    """Find a template that does not parse, or its file that cannot be read. Without Jinja nothing is found."""
    try:
        jinja: Any = import_module("jinja2")  # absent on machines that only pack
        text = template.read_text(encoding="utf-8") if isinstance(template, Path) else template
        if isinstance(text, str):  # else there are several, with names
            environment = jinja.Environment(extensions=["jinja2.ext.loopcontrols"])
            marked = _GENERATION.sub(lambda m: f"{m[1]}{'endif' if m[2] else 'if true'}", text)
            environment.parse(marked)
    except ImportError:
        return
    except (OSError, UnicodeDecodeError, RecursionError) as reason:
        yield error(key, f"{place} cannot be read: {reason}", "correct it")
    except jinja.TemplateSyntaxError as reason:
        yield error(key, f"line {reason.lineno} of {place}: {reason.message}", "correct it")
