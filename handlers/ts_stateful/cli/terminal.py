"""What a terminal is told, and what it must not be told.

Owns colours and the cleaning of text that comes from a server: control characters could move the cursor, retitle the window or
type into the shell.
"""

from __future__ import annotations

import unicodedata
from typing import TextIO

__all__ = ["Terminal"]


class Terminal:
    """An output: plain where it goes to a file or a pipe, cleaned and dimmed where it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_tty = stream.isatty()

    def text(self, text: str) -> None:
        """Prints text of the server at once, without an end of line."""
        self._stream.write(_harmless(text) if self._is_tty else text)
        self._stream.flush()

    def line(self, text: str = "") -> None:
        """Prints a line, of which parts may come from the server."""
        self.text(text)
        self._stream.write("\n")
        self._stream.flush()

    def aside(self, text: str) -> None:
        """Prints a line that is not part of the reply."""
        if self._is_tty:
            self._stream.write(f"\x1b[2m{_harmless(text)}\x1b[0m\n")
            self._stream.flush()
        else:
            self.line(text)


def _harmless(text: str) -> str:
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) == "Cc" and character not in "\n\t"
        else character
        for character in text
    )
