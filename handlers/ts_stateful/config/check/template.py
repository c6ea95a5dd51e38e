"""The rule for chat templates: they parse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ts_stateful.config.check.finding import Finding, error

__all__ = ["check_template"]

# Marks of the parts that are trained on, a tag of `transformers` alone.
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(?=\s*[-+]?%\})")


def check_template(key: str, place: str, template: object) -> Iterator[Finding]:
    """Find a template that does not parse, or its file that cannot be read. Without Jinja nothing is found."""
    try:
        jinja: Any = import_module("jinja2")  # absent on machines that only pack
        text = template.read_text(encoding="utf-8") if isinstance(template, Path) else template
        if isinstance(text, str):  # else there are several, with names
            environment = jinja.Environment(extensions=["jinja2.ext.loopcontrols"])
            environment.parse(_GENERATION.sub(_without_mark, text))
    except ImportError:
        return
    except (OSError, UnicodeDecodeError, RecursionError) as reason:
        yield error(key, f"{place} cannot be read: {reason}", "correct it")
    except jinja.TemplateSyntaxError as reason:
        yield error(key, f"line {reason.lineno} of {place}: {reason.message}", "correct it")


def _without_mark(found: re.Match[str]) -> str:
    return f"{found[1]}{'endif' if found[2] else 'if true'}"
