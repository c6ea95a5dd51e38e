"""Replies as Markdown, formatted while they come. Needs the extra `chat`."""

from __future__ import annotations

import re
import termios
from typing import IO, TextIO

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from ts_stateful.cli.chat.reply_parser import reply_parser
from ts_stateful.cli.terminal import PlainReply, harmless

__all__ = ["MarkdownReply", "end_of_block"]

_FENCE = re.compile(r"\s*(`{3,}|~{3,})(.*)")
_MARKDOWN = reply_parser().disable("reference")  # it is shown with its address, as it was written


class MarkdownReply(PlainReply):
    """One reply on a terminal. Its last block is drawn again while it grows; those before it stay as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._text = ""
        self._block = ""
        self._live: Live | None = None
        _set_echo(stream, on=False)

    def __rich__(self) -> Markdown:
        # Links with their addresses: a model may name one and mean another.
        markdown = Markdown("", hyperlinks=False)
        markdown.parsed = _MARKDOWN.parse(self._block)
        for token in markdown.parsed:
            for child in token.children or ():
                child.type = "hardbreak" if child.type == "softbreak" else child.type
        return markdown

    def add(self, piece: str) -> None:
        """See `PlainReply`."""
        self._text += harmless(piece)
        while end := end_of_block(self._text):
            self._show(self._text[:end])
            self._end_block()
            self._console.line()
            self._text = self._text[end:]
        self._show(self._text)

    def close(self) -> None:
        """End the reply, on a line of its own."""
        self._end_block()
        _set_echo(self._console.file, on=True)

    def _show(self, block: str) -> None:
        self._block = block
        if self._live is None and block.strip():
            self._live = Live(self, console=self._console, refresh_per_second=12)
            self._live.start()

    def _end_block(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _set_echo(stream: IO[str], *, on: bool) -> None:
    """Echo what is typed, or not: `^C` on a full line would move those that are drawn again."""
    if stream.isatty():
        attributes = termios.tcgetattr(stream)
        attributes[3] = attributes[3] | termios.ECHO if on else attributes[3] & ~termios.ECHO
        termios.tcsetattr(stream, termios.TCSADRAIN, attributes)


def end_of_block(text: str) -> int:
    """Return where the first block of Markdown ends, with the empty line after it; 0 if it may go on."""
    end, fence, is_begun = 0, "", False
    for line in text.splitlines(keepends=True):
        end += len(line)
        if found := _FENCE.match(line):
            marks, info = found.groups()
            if not fence and not (marks[0] == "`" and "`" in info):
                fence = marks
            elif fence and marks.startswith(fence) and not info.strip():
                fence = ""
        if line.strip():
            is_begun = True
        elif is_begun and not fence and line.endswith("\n"):
            return end
    return 0
