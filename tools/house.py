#!/usr/bin/env python3
"""The shape of the source and its wording, measured against the limits that CONTRIBUTING.md names.

`python tools/house.py` prints a table and exits with 1 if a limit is exceeded; `--list` adds each place that counts.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "handlers"
PACKAGE = SOURCE / "ts_stateful"

_OPENINGS = re.compile(r"(What|Whether|How|Where|Who|Whose|Those|That)\b")
_WORDS = re.compile(r"\b(behind|told|anew)\b", re.IGNORECASE)
_PROSE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_MAX_PARAMETERS = 8  # of any constructor
_MANY_PARAMETERS = 6
_MAX_FILE_LINES = 300
_MAX_FUNCTION_LINES = 40


class Measure(NamedTuple):
    """One row of the table: a value, its limit, and the places that it counts."""

    name: str
    value: float
    limit: float
    places: list[str]
    unit: str = ""


class Module(NamedTuple):
    """A source file that was parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The path from the root, for people."""
        return str(self.path.relative_to(ROOT))

    @property
    def num_lines(self) -> int:
        """Lines, blank ones included."""
        return len(self.text.splitlines())


def modules() -> list[Module]:
    """Parse all source files but generated ones."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if "pb" not in path.parts and not any(part.endswith(".egg-info") for part in path.parts):
            text = path.read_text(encoding="utf-8")
            found.append(Module(path, text, ast.parse(text)))
    return found


def _constructors(module: Module) -> Iterator[tuple[str, list[ast.arg]]]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                given = member.args
                arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs][1:]
                yield f"{module.name}:{member.lineno} {node.name}({len(arguments)})", arguments


def _takes_function(arguments: list[ast.arg]) -> bool:
    annotations = [a.annotation for a in arguments if a.annotation is not None]
    return any("Callable" in ast.unparse(annotation) for annotation in annotations)


def _docstrings(module: Module) -> Iterator[tuple[str, str]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(module.tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield f"{module.name}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}", text


def _functions(module: Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{module.name}:{node.lineno} {node.name} ({lines})", lines


def _wrong_words(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if _WORDS.search(line):
            yield f"{path.relative_to(ROOT)}:{number} {line.strip()}"


def _map(found: list[Module]) -> list[Measure]:
    """Measure folders and files."""
    folders: dict[Path, int] = defaultdict(int)
    for module in found:
        folders[module.path.parent] += module.path.name != "__init__.py"
    largest = max(folders, key=lambda folder: folders[folder])
    loose = [m.name for m in found if m.path.parent == PACKAGE and m.path.name != "__init__.py"]
    long = [f"{m.name} ({m.num_lines})" for m in found if m.num_lines > _MAX_FILE_LINES]
    return [
        Measure("lines of source", sum(m.num_lines for m in found), 58_000, []),
        Measure("files in the largest flat folder", folders[largest], 20, [largest.name]),
        Measure("loose modules at the package's top", len(loose), 3, loose),
        Measure(f"files over {_MAX_FILE_LINES} lines", len(long), 0, long),
    ]


def _code(found: list[Module]) -> list[Measure]:
    """Measure functions, classes and constructors."""
    long = [name for m in found for name, lines in _functions(m) if lines > _MAX_FUNCTION_LINES]
    classes: dict[str, list[str]] = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(module.name)
    shared = [f"{n}: {', '.join(files)}" for n, files in sorted(classes.items()) if len(files) > 1]
    made = [one for m in found for one in _constructors(m)]
    wide = [name for name, arguments in made if len(arguments) >= _MANY_PARAMETERS]
    too_wide = [name for name, arguments in made if len(arguments) > _MAX_PARAMETERS]
    called = [name for name, arguments in made if _takes_function(arguments)]
    return [
        # A Triton kernel is one function: four of these.
        Measure(f"functions over {_MAX_FUNCTION_LINES} lines", len(long), 9, long),
        Measure("class names in more than one file", len(shared), 4, shared),
        Measure(f"constructors of {_MANY_PARAMETERS} parameters or more", len(wide), 8, wide),
        Measure(f"constructors of more than {_MAX_PARAMETERS}", len(too_wide), 0, too_wide),
        Measure(
            "constructors that take a function", 100 * len(called) / len(made), 14, called, " %"
        ),
    ]


def _wording(found: list[Module]) -> list[Measure]:
    """Measure docstrings, words and the README."""
    odd = [name for m in found for name, text in _docstrings(m) if _OPENINGS.match(text)]
    words = [place for m in found for place in _wrong_words(m.path, m.text)]
    prose = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in _PROSE)]
    texts = {path: path.read_text(encoding="utf-8") for path in prose if path.exists()}
    said = [place for path, text in texts.items() for place in _wrong_words(path, text)]
    readme = len(texts[ROOT / "README.md"].split())
    return [
        Measure("docstrings that open with What, Whether, ...", len(odd), 0, odd),
        Measure("'behind', 'told', 'anew' in the source", len(words), 0, words),
        Measure("'behind', 'told', 'anew' in the documents", len(said), 0, said),
        Measure("words of the README", readme, 1_300, []),
    ]


def measures() -> list[Measure]:
    """Measure the tree."""
    found = modules()
    return [*_map(found), *_code(found), *_wording(found)]


def main() -> int:
    """Print the table; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name each place that counts")
    options = parser.parse_args()
    rows = measures()
    for row in rows:
        mark = "  too many" if row.value > row.limit else ""
        print(
            f"{row.name:48} {row.value:8,.0f}{row.unit:2} limit {row.limit:6,.0f}{row.unit:2}{mark}"
        )
        for place in row.places if options.list else ():
            print(f"    {place}")
    return int(any(row.value > row.limit for row in rows))


if __name__ == "__main__":
    sys.exit(main())
