"""An interactive session: lines in, replies out."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TextIO

import msgspec

from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import ClientError, PromptOptions, Reply, Server, Session
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.errors import SessionError, StatefulError

__all__ = ["COMMANDS", "ChatLoop", "ChatOptions"]

COMMANDS = """\
/image FILE  send an image (a file or a URL) with the next prompt
/audio FILE  the same with a clip of audio, for a model that hears
/info        show the session's state, turns, tokens and bytes
/fork        continue in a copy of the session; the original keeps its turns
/rewind N    remove all turns after turn N; 0 removes all turns
/sessions    list the sessions of this chat; /sessions N switches to number N
/help        show these commands
/quit        end the chat, as Ctrl-D does
Ctrl-C       cancel the reply in progress; its text stays in the session"""

_NO_SESSION = "no session yet; the first prompt opens one"


@dataclass(frozen=True)
class ChatOptions:
    """The session to continue (None opens one), and the content of new sessions and prompts."""

    session: Session | None = None
    system: str | None = None
    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    prompt: PromptOptions = field(default_factory=PromptOptions)


class ChatLoop:
    """A conversation and its forks. At the end it closes all sessions that it opened."""

    def __init__(
        self,
        server: Server,
        terminal: Terminal,
        lines: TextIO,
        options: ChatOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._server = server
        self._terminal = terminal
        self._lines = lines
        self._options = options
        self._clock = clock
        self._session = options.session
        self._sessions = [] if self._session is None else [self._session]  # with its forks
        self._images, self._audio = list(options.images), list(options.audio)
        self._num_failures = 0

    def run(self) -> int:
        """Talk until the input ends or `/quit`. Return the number of lines that failed."""
        if self._lines.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - adds editing to `input`, on a terminal only
            self._terminal.aside("type a prompt; /help lists the commands, Ctrl-D ends the chat")
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
            self._terminal.aside("Ctrl-D or /quit ends the chat")
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
            if self._images or self._audio:
                self._forget_files()
                self._terminal.aside(
                    "the files were dropped; give them again with /image or /audio"
                )
            if isinstance(error, SessionError) and error.status in (404, 410):
                self._forget_session()
                self._terminal.aside("the session has ended; the next prompt opens a new one")
        except KeyboardInterrupt:
            self._terminal.line()
            self._terminal.aside("interrupted")

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name == "/image" and argument:
            self._images.append(argument)
            self._terminal.aside("the image goes with the next prompt")
        elif name == "/audio" and argument:
            self._audio.append(argument)
            self._terminal.aside("the clip goes with the next prompt")
        elif name == "/info":
            self._info()
        elif name == "/fork":
            self._fork()
        elif name == "/rewind" and argument.isdecimal():
            self._rewind(int(argument))
        elif line == "/sessions":
            self._list()
        elif name == "/sessions" and argument in self._numbered():
            self._session = self._numbered()[argument]
            self._list()
        elif name == "/help":
            self._terminal.aside(COMMANDS)
        else:
            self._num_failures += 1
            self._terminal.aside(f"no such command: {line}; /help lists the commands")

    def _current(self) -> Session | None:
        if self._session is None:
            self._terminal.aside(_NO_SESSION)
        return self._session

    def _info(self) -> None:
        if session := self._current():
            for name, value in msgspec.to_builtins(session.info()).items():
                self._terminal.aside(f"{name}: {value}")

    def _fork(self) -> None:
        if session := self._current():
            self._session = session.fork()
            self._sessions.append(self._session)
            self._list()

    def _rewind(self, to_turn: int) -> None:
        if session := self._current():
            rewound = session.rewind(to_turn)
            self._terminal.aside(f"back at turn {rewound.turn}, {rewound.tokens} tokens")

    def _numbered(self) -> dict[str, Session]:
        return {str(number): session for number, session in enumerate(self._sessions, start=1)}

    def _list(self) -> None:
        if not self._sessions:
            self._terminal.aside(_NO_SESSION)
        for number, session in self._numbered().items():
            try:
                state = f"{session.info().turns} turns"
            except SessionError:
                state = "ended"
            mark = "*" if session is self._session else " "
            self._terminal.aside(f"{mark} {number}  {session.session_id}  {state}")

    def _forget_session(self) -> None:
        self._sessions = [s for s in self._sessions if s is not self._session]
        self._session = None

    def _prompt(self, line: str) -> None:
        if self._session is None:
            self._session = self._server.open(
                images=self._images, audio=self._audio, system=self._options.system
            )
            self._sessions.append(self._session)
            self._forget_files()
        reply = self._session.prompt(
            line, images=self._images, audio=self._audio, **self._options.prompt
        )
        started_at = self._clock.monotonic()
        first_s: float | None = None
        try:
            for piece in reply:
                if first_s is None:
                    first_s = self._clock.monotonic() - started_at
                self._terminal.text(piece)
        except KeyboardInterrupt:  # the reply has cancelled its turn
            reply.close()
        self._forget_files()
        self._terminal.line()
        self._terminal.aside(_figures(reply, first_s))

    def _forget_files(self) -> None:
        self._images.clear()
        self._audio.clear()

    def _close(self) -> None:
        for session in self._sessions:
            if session is not self._options.session:
                with contextlib.suppress(ClientError, StatefulError):
                    session.close()


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
