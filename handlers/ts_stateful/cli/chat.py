"""An interactive session: lines in, replies out.

Owns the loop and its commands. Time comes from outside.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TextIO

import msgspec

from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import ClientError, PromptOptions, Reply, Server, Session
from ts_stateful.errors import SessionError, StatefulError

__all__ = ["Chat"]

_HELP = """\
/image FILE  sends an image (a file or a URL) with the next prompt
/info        shows the figures of the session
/help        shows this
/quit        ends the session, as Ctrl-D does
Ctrl-C       cancels the reply in progress"""


class Chat:
    """One conversation. A session that it is given stays open; one that it opens is closed at the end."""

    def __init__(
        self,
        server: Server,
        terminal: Terminal,
        lines: TextIO,
        *,
        session: Session | None = None,
        system: str | None = None,
        images: Sequence[str] = (),
        options: PromptOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._terminal = terminal
        self._lines = lines
        self._session = session
        self._keeps_session = session is not None
        self._system = system
        self._images = list(images)
        self._options = options or PromptOptions()
        self._clock = clock
        self._num_failures = 0

    def run(self) -> int:
        """Talks until the input ends or `/quit`; the number of lines that failed."""
        if self._lines.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - gives `input` its editing; of no use elsewhere
            self._terminal.aside("/help shows the commands; Ctrl-D ends")
        try:
            while (line := self._read()) is not None and line != "/quit":
                if line:
                    self._handle(line)
        finally:
            self._close()
        return self._num_failures

    def _read(self) -> str | None:
        try:
            if self._lines.isatty():
                return input("> ").strip()
            line = self._lines.readline()
            return line.strip() if line else None
        except EOFError:
            self._terminal.line()
            return None
        except KeyboardInterrupt:
            self._terminal.line()
            self._terminal.aside("Ctrl-D or /quit ends")
            return ""

    def _handle(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(line)
            else:
                self._prompt(line)
        except (ClientError, StatefulError, OSError) as error:
            self._num_failures += 1
            self._terminal.aside(f"error: {_reason(error)}")
            if self._images:
                self._images.clear()
                self._terminal.aside("images have to be given again")
            if isinstance(error, SessionError) and error.status in (404, 410):
                self._session, self._keeps_session = None, False
                self._terminal.aside("the session has ended; the next prompt opens a new one")
        except KeyboardInterrupt:
            self._terminal.line()
            self._terminal.aside("interrupted")

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/image" and argument.strip():
            self._images.append(argument.strip())
            self._terminal.aside("goes with the next prompt")
        elif name == "/info":
            self._info()
        elif name == "/help":
            self._terminal.aside(_HELP)
        else:
            self._num_failures += 1
            self._terminal.aside(f"no such command: {line}; /help shows what there is")

    def _info(self) -> None:
        if self._session is None:
            self._terminal.aside("no session yet; the first prompt opens one")
            return
        for name, value in msgspec.to_builtins(self._session.info()).items():
            self._terminal.aside(f"{name}: {value}")

    def _prompt(self, line: str) -> None:
        if self._session is None:
            self._session = self._server.open(images=self._images, system=self._system)
            self._images.clear()
        reply = self._session.prompt(line, images=self._images, **self._options)
        started_at = self._clock()
        first_s: float | None = None
        try:
            for piece in reply:
                if first_s is None:
                    first_s = self._clock() - started_at
                self._terminal.text(piece)
        except KeyboardInterrupt:  # by now the reply has cancelled its turn
            reply.close()
        self._images.clear()
        self._terminal.line()
        self._terminal.aside(_figures(reply, first_s))

    def _close(self) -> None:
        if self._session is not None and not self._keeps_session:
            with contextlib.suppress(ClientError, StatefulError):
                self._session.close()


def _figures(reply: Reply, first_s: float | None) -> str:
    if reply.usage is None:
        return f"[{reply.finish_reason or 'interrupted'}]"
    usage = reply.usage
    figures = (
        "no text" if first_s is None else f"{1000 * first_s:.0f} ms to the first piece",
        f"{usage.completion_tokens} tokens",
        f"{usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} cached",
    )
    ending = "" if reply.finish_reason == "stop" else f", {reply.finish_reason}"
    return f"[{', '.join(figures)}{ending}]"


def _reason(error: Exception) -> str:
    if isinstance(error, StatefulError) and error.code:
        return f"{error.code}: {error.message}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
