"""`python -m tests.models_table`: the table of docs/models.md, made from the small models of the tests.

Each one holds a conversation of two turns, which stock `generate` must repeat. Fused steps need AVX2 or AVX-512. The rows of
models whose packages are not installed stay as they are.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.sounds import media_of
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import Model, accelerate

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- begin: made by python -m tests.models_table -->", "<!-- end -->"
_HEAD = "| model | class | sessions in a pass | fused | media | exact | of note |\n|---|---|---|---|---|---|---|\n"


def title(build: Callable[[], Model]) -> tuple[str, str]:
    """Return a model's name and what is special about it, from the sentence of its builder."""
    sentence = (inspect.getdoc(build) or "").split("\n")[0].removeprefix("Build ").rstrip(".")
    name, *note = re.split(r": |, (?=which|tiled)| (?=with |as )", sentence, maxsplit=1)
    return name, "".join(note)


def row(build: Callable[[], Model]) -> str:
    """Return the row of a model, which is built and talked to."""
    model = build()
    name, note = title(build)
    exact = "yes" if is_exact(model) else "**no**"
    if model.forward.token_by_token:
        note = "; ".join(filter(None, (note, "a pass for each token of a later prompt")))
    media = " and ".join(model.encoder.kinds) if model.encoder else ""
    accelerate(model, HandlerConfig(model="", attention_kernels=False))
    fused = "yes" if model.forward.shortcut else ""
    passes = "all" if model.forward.flat else "replies" if model.forward.batched else "one"
    cells = (name, type(model.network).__name__, passes, fused, media, exact, note)
    return f"| {' | '.join(cells)} |\n"


def kept_row(build: Callable[[], Model], text: str) -> str:
    """Return the row of a model as a page has it; nothing if the page has none."""
    name, note = title(build)
    lines = text.splitlines(keepends=True)
    return "".join(each for each in lines if each.startswith(f"| {name} |") and note in each)


def is_exact(model: Model) -> bool:
    """Return True if a conversation is what stock `generate` makes of its transcript."""
    harness = Harness(model)
    harness.open("s", media_of(model))
    try:
        for question in ("What color is the circle?", "And the square?"):
            harness.prompt("s", question, max_new_tokens=16)
            reference_reply(model, harness, "s", 16)
    except AssertionError:
        return False
    return True


def page(text: str, rows: list[str]) -> str:
    """Return the page with these rows."""
    table = f"{BEGIN}\n{_HEAD}{''.join(rows)}{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: table, text, flags=re.S)


def main() -> None:
    """Write the page."""
    text, rows = PAGE.read_text(encoding="utf-8"), []
    for number, build in enumerate(builders(), 1):
        try:
            rows.append(row(build))
        except pytest.skip.Exception as missing:
            rows.append(kept_row(build, text))
            sys.stderr.write(f"{missing}: ")
        sys.stderr.write(f"{number} {rows[-1]}")
    PAGE.write_text(page(text, rows), encoding="utf-8")


def builders() -> list[Callable[[], Model]]:
    """Return the builders of all models, by their titles."""
    return sorted({**MODELS, **MORE_MODELS}.values(), key=lambda build: title(build)[0].lower())


if __name__ == "__main__":
    main()
