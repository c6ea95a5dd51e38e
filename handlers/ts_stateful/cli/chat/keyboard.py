"""Lines of a chat: typed at a terminal, or from a pipe."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent

__all__ = ["EDITING_MISSING", "Lines", "TypedLines", "is_utf8", "lines_of"]

EDITING_MISSING = "for history, pasting and Markdown: pip install 'torchserve-stateful[chat]'"
_MARK = "> "


class Lines:
    """The prompts and commands in a stream; at a terminal with a mark in front, and without editing."""

    has_editing = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):  # one bad line does not end the chat
            stream.reconfigure(errors="surrogateescape")

    def read(self) -> str | None:
        """Return the next line; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        if not self._stream.isatty():
            return self._stream.readline() or None
        try:
            return input(_MARK)
        except EOFError:
            print()  # noqa: T201 - the shell's own mark begins a line
            return None


class TypedLines(Lines):
    """Lines with editing: a history over all chats, pasted text in one piece, and completion of commands and files.

    Enter sends. A line feed is Alt-Enter, or a backslash at the end of a line.
    """

    has_editing = True

    def __init__(self, commands: tuple[str, ...], history: Path | None) -> None:
        from prompt_toolkit import PromptSession  # noqa: PLC0415 - an extra
        from prompt_toolkit.completion import NestedCompleter, PathCompleter  # noqa: PLC0415
        from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415
        from prompt_toolkit.key_binding import KeyBindings  # noqa: PLC0415
        from prompt_toolkit.validation import Validator  # noqa: PLC0415

        keys = KeyBindings()
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        keys.add("enter")(_send)
        files = dict.fromkeys(("/image", "/audio", "/save"), PathCompleter(expanduser=True))
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if history is None else FileHistory(str(history)),
            key_bindings=keys,
            completer=NestedCompleter({**dict.fromkeys(commands), **files}),
            complete_while_typing=False,
            validator=Validator.from_callable(
                is_utf8, "this is not UTF-8", move_cursor_to_end=True
            ),
            validate_while_typing=False,
            prompt_continuation=" " * len(_MARK),
        )

    def read(self) -> str | None:
        """See `Lines`."""
        try:
            return self._session.prompt(_MARK)
        except EOFError:
            return None


def lines_of(stream: TextIO, commands: tuple[str, ...], *, keeps_history: bool) -> Lines:
    """Return the best lines that the stream and the installed packages allow."""
    if stream.isatty():
        try:
            return TypedLines(commands, _history_path() if keeps_history else None)
        except ModuleNotFoundError:
            pass
    return Lines(stream)


def is_utf8(line: str) -> bool:
    """Return False if bytes of the line could not be decoded."""
    return not any("\ud800" <= character <= "\udfff" for character in line)


def _send(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.document.text_before_cursor.endswith("\\"):
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


def _history_path() -> Path | None:
    """Return the file of the history, by the XDG Base Directory Specification; no other user of the machine can read it."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        path = Path(state, "ts-stateful", "history")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):  # a user without a home, or with one that cannot be written
        return None
    return path
