"""Output to a terminal or a file.

Text of a server may have control characters. They could move the cursor, retitle the window or type into the shell.
"""

from __future__ import annotations

import unicodedata
from typing import TextIO

__all__ = ["Terminal"]


class Terminal:
    """An output stream: cleaned and dimmed on a terminal, unchanged in a file or a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_tty = stream.isatty()

    def text(self, text: str) -> None:
        """Print text at once, without an end of line."""
        self._stream.write(_harmless(text) if self._is_tty else text)
        self._stream.flush()

    def line(self, text: str = "") -> None:
        """Print a line."""
        self.text(text)
        self._stream.write("\n")
        self._stream.flush()

    def aside(self, text: str) -> None:
        """Print a line that is not part of a reply; dimmed on a terminal."""
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
