"""The parser of replies as Markdown, of the terminal and of the page."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

__all__ = ["reply_parser"]

_DISPLAYED = r"\\\[.{1,1000}?\\\]|\$\$.{1,1000}?\$\$"
# Between single dollars as Pandoc has it: no space inside of them, and no digit after the last, as after "$5-$6".
_FORMULA = re.compile(
    rf"{_DISPLAYED}|\\\(.{{1,1000}}?\\\)|\$(?!\s)[^$`\n]+(?<![\s\\])\$(?!\d)", re.DOTALL
)
_BLOCK = re.compile(rf"(?:{_DISPLAYED})(?=[ \t]*(?:\n|\Z))", re.DOTALL)
_MOST_NESTED = 100  # what is deeper is not shown


def reply_parser() -> MarkdownIt:
    """Return a parser for which tags and pictures are text, and formulas are code: their backslashes stay."""
    options = {"html": False, "maxNesting": _MOST_NESTED}
    parser = MarkdownIt("commonmark", options).enable(["strikethrough", "table"]).disable("image")
    parser.inline.ruler.before("escape", "formula", _formula)
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", "formulas", _block, {"alt": interrupted})
    return parser


def _formula(state: StateInline, silent: bool) -> bool:
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("code_inline", "code", 0).content = found[0]
    state.pos = found.end()
    return True


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    found = _BLOCK.match(state.src, state.bMarks[start] + state.tShift[start])
    after = start + 1 + (0 if found is None else found[0].count("\n"))
    if found is None or after > end or state.is_code_block(start):
        return False
    if not silent:
        state.line = after
        token = state.push("fence", "code", 0)
        lines = state.getLines(start, after, state.sCount[start], False)  # without marks of quotes
        token.content, token.map = f"{lines}\n", [start, after]
    return True
