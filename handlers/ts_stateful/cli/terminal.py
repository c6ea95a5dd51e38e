"""Output to a terminal or a file.

Text of a server may have control characters. They could move the cursor, retitle the window or type into the shell.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from pathlib import Path
from typing import TextIO

__all__ = ["PlainReply", "Terminal", "harmless", "replace_closed_streams"]


class Terminal:
    """An output stream: cleaned and dimmed on a terminal, unchanged in a file or a pipe.

    With `formats`, replies are formatted as Markdown on a terminal.
    """

    def __init__(self, stream: TextIO, *, formats: bool = False) -> None:
        self._stream = stream
        self._formats = formats
        self._is_in_line = False
        self.is_tty = stream.isatty()
        self._dims = self.is_tty and os.environ.get("TERM") != "dumb"

    def text(self, text: str) -> None:
        """Print text at once, without an end of line."""
        if text:
            self._is_in_line = not text.endswith("\n")
        self._stream.write(harmless(text) if self.is_tty else text)
        self._stream.flush()

    def line(self, text: str = "") -> None:
        """Print a line."""
        self.text(f"{text}\n")

    def fresh_line(self) -> None:
        """End the line in which the output is, if it is in one."""
        if self._is_in_line:
            self.line()

    def aside(self, text: str) -> None:
        """Print a line that is not part of a reply; dimmed on a terminal."""
        if self._dims:
            self._stream.write(f"\x1b[2m{harmless(text)}\x1b[0m\n")
            self._stream.flush()
        else:
            self.line(text)

    def reply(self) -> PlainReply:
        """Return where the pieces of a reply go."""
        if self.is_tty and self._formats:
            try:
                from ts_stateful.cli.chat.markdown import MarkdownReply  # noqa: PLC0415 - an extra
            except ModuleNotFoundError:
                pass
            else:
                return MarkdownReply(self._stream)
        return PlainReply(self)


class PlainReply:
    """A reply on its way to the output, as it is."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def add(self, piece: str) -> None:
        """Show more of it."""
        self._terminal.text(piece)

    def close(self) -> None:
        """Show all of it."""
        self._terminal.fresh_line()


def harmless(text: str) -> str:
    """Return the text with U+FFFD for control characters, and without the CRs of ends of lines."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) == "Cc" and character not in "\n\t"
        else character
        for character in text
        if character != "\r"
    )


def replace_closed_streams() -> None:
    """Open the null device as each standard stream that the caller has closed.

    Else a socket or a log file would get its number, and what a process prints would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 - until the process ends
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
