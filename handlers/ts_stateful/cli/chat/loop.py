"""An interactive session: lines in, replies out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ts_stateful.cli.chat.files import FileRefused, Files
from ts_stateful.cli.chat.keyboard import EDITING_MISSING, Lines, is_utf8
from ts_stateful.cli.chat.talk import Exchange, Talk
from ts_stateful.cli.chat.words import ReplyTimes, counted, figures, reason, session_facts, waiting
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import ClientError, PromptOptions, Reply, Server, Session
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.answers import ServerLimits
from ts_stateful.protocol.errors import ContextTooLong, SessionError, StatefulError

__all__ = ["COMMANDS", "NAMES", "ChatLoop", "ChatOptions"]

COMMANDS = """\
/image FILE   send an image (a file or a URL) with the next prompt
/audio FILE   the same with a clip of audio, for a model that hears
/images       list the files that wait for the next prompt; /images clear drops them
/system TEXT  begin a new session with this system prompt
/new          begin a new session; the others stay open
/undo         remove the last turn
/rewind N     remove all turns after turn N; 0 removes all turns
/fork         continue in a copy of the session; the original keeps its turns
/sessions     list the sessions of this chat; /sessions N switches to number N
/info         show the session's turns, context and memory
/save FILE    write the conversation as Markdown
/help         show these commands
/quit         end the chat, as Ctrl-D does
Ctrl-C        cancel the reply in progress; its text stays in the session
A prompt that begins with / is typed with another / before it."""

NAMES = tuple(line.split()[0] for line in COMMANDS.splitlines() if line.startswith("/"))
_NO_SESSION = "no session yet; the first prompt opens one"
_MOST_DIGITS = 9
# The last two: a path with a NUL, and one in the home of nobody.
_FAILURES = (ClientError, StatefulError, FileRefused, OSError, ValueError, RuntimeError)
_WITH_ARGUMENT = {"/image", "/audio", "/rewind", "/save"}


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
        limits: ServerLimits,
        terminal: Terminal,
        lines: Lines,
        options: ChatOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._server = server
        self._context_tokens = limits.context_tokens
        self._terminal = terminal
        self._lines = lines
        self._options = options
        self._clock = clock
        self._system = options.system
        self._talk = None if options.session is None else Talk(options.session)
        self._talks = [] if self._talk is None else [self._talk]
        self._files = Files(limits)
        self._saved: set[Path] = set()
        self._num_failures = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "/image": lambda name: self._add(self._files.add_images, "image", name),
            "/audio": lambda name: self._add(self._files.add_audio, "clip", name),
            "/images": self._show_files,
            "/system": self._begin_with,
            "/new": self._begin,
            "/undo": self._undo,
            "/rewind": self._rewind,
            "/fork": self._fork,
            "/sessions": self._switch,
            "/info": self._info,
            "/save": self._save,
            "/help": lambda _: self._terminal.aside(COMMANDS),
        }

    def run(self) -> int:
        """Talk until the input ends or `/quit`. Return the number of lines that failed.

        Raises:
            FileRefused, OSError: a file of the options cannot be sent.
        """
        self._files.add_images(self._options.images)
        self._files.add_audio(self._options.audio)
        if self._terminal.is_tty:
            self._terminal.aside("type a prompt; /help lists the commands, Ctrl-D ends the chat")
            if not self._lines.has_editing:
                self._terminal.aside(EDITING_MISSING)
        try:
            while (line := self._read()) is not None and line != "/quit":
                if line:
                    self._handle(line)
        finally:
            self._close()
        return self._num_failures

    def _read(self) -> str | None:
        try:
            line = self._lines.read()
            return None if line is None else line.strip()
        except KeyboardInterrupt:
            self._terminal.fresh_line()
            self._terminal.aside("Ctrl-D or /quit ends the chat")
            return ""

    def _handle(self, line: str) -> None:
        try:
            if not is_utf8(line):
                self._fail("error: the line is not UTF-8")
            elif _is_command(line):
                self._command(line)
            else:
                with waiting(self._server):
                    self._prompt(line.removeprefix("/"))
        except _FAILURES as error:
            self._fail(f"error: {reason(error)}")
            self._recover(line, error)
        except KeyboardInterrupt:
            self._terminal.fresh_line()
            self._terminal.aside("interrupted")

    def _fail(self, message: str) -> None:
        self._num_failures += 1
        self._terminal.fresh_line()
        self._terminal.aside(message)

    def _recover(self, line: str, error: Exception) -> None:
        """Say what to do after an error."""
        if not _is_command(line) and self._files.names:
            self._files.clear()
            self._terminal.aside("the files were dropped; give them again with /image or /audio")
        if isinstance(error, ContextTooLong):
            self._terminal.aside(
                "the session is full: /undo and /rewind N make room, /new begins another"
            )
        if isinstance(error, SessionError) and error.status in (404, 410):
            self._talks = [talk for talk in self._talks if talk is not self._talk]
            self._talk = None
            self._terminal.aside("the session has ended; the next prompt opens a new one")

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name not in self._commands:
            self._fail(f"no such command: {line}; /help lists the commands")
        elif name in _WITH_ARGUMENT and not argument:
            (usage,) = (text for text in COMMANDS.splitlines() if text.startswith(f"{name} "))
            self._fail(usage)
        else:
            self._commands[name](argument)

    def _current(self) -> Talk | None:
        if self._talk is None:
            self._terminal.aside(_NO_SESSION)
        return self._talk

    def _add(self, add: Callable[[list[str]], None], noun: str, name: str) -> None:
        quoted = re.fullmatch(r"""(["'])(.+)\1""", name)  # as a terminal inserts a dropped file
        add([quoted[2] if quoted else name])
        self._terminal.aside(f"the {noun} goes with the next prompt")

    def _show_files(self, argument: str) -> None:
        if argument == "clear":
            self._files.clear()
        self._terminal.aside("\n".join(self._files.names) or "no files wait for the next prompt")

    def _begin_with(self, system: str) -> None:
        if system:
            self._system = system
            self._begin()
        else:
            self._terminal.aside(self._system or "no system prompt")

    def _begin(self, _: str = "") -> None:
        self._talk = None
        self._terminal.aside("the next prompt opens a new session")

    def _info(self, _: str) -> None:
        if talk := self._current():
            for fact in session_facts(talk.session.info(), self._context_tokens):
                self._terminal.aside(fact)

    def _fork(self, _: str) -> None:
        if talk := self._current():
            self._talk = talk.forked(talk.session.fork())
            self._talks.append(self._talk)
            self._list()

    def _undo(self, _: str) -> None:
        if talk := self._current():
            if turns := talk.session.info().turns:
                self._rewind_to(talk, turns - 1)
            else:
                self._terminal.aside("there is no turn to remove")

    def _rewind(self, argument: str) -> None:
        if not argument.isdecimal() or len(argument) > _MOST_DIGITS:
            self._fail("/rewind takes the number of a turn, or 0")
        elif talk := self._current():
            self._rewind_to(talk, int(argument))

    def _rewind_to(self, talk: Talk, turn: int) -> None:
        rewound = talk.session.rewind(turn)
        talk.forget_after(rewound.turn)
        self._terminal.aside(f"back at turn {rewound.turn}, {rewound.tokens} tokens")

    def _switch(self, argument: str) -> None:
        numbered = {str(number): talk for number, talk in enumerate(self._talks, start=1)}
        if argument and argument not in numbered:
            self._fail(f"there is no session {argument}")
            return
        self._talk = numbered[argument] if argument else self._talk
        self._list()

    def _list(self) -> None:
        if not self._talks:
            self._terminal.aside(_NO_SESSION)
        for number, talk in enumerate(self._talks, start=1):
            try:
                state = counted(talk.session.info().turns, "turn")
            except SessionError:
                state = "ended"
            mark = "*" if talk is self._talk else " "
            self._terminal.aside(f"{mark} {number}  {talk.session.session_id}  {state}")

    def _save(self, argument: str) -> None:
        path = Path(argument).expanduser()
        if path not in self._saved and path.exists():
            self._fail(f"{path} exists; name another file")
        elif talk := self._current():
            path.write_text(talk.markdown(), encoding="utf-8")
            self._saved.add(path)
            count = len(talk.exchanges)
            verb = "is" if count == 1 else "are"
            self._terminal.aside(f"{counted(count, 'turn')} {verb} in {path}")

    def _prompt(self, line: str) -> None:
        files = self._files.names
        images, audio = self._files.images, self._files.audio
        if self._talk is None:
            session = self._server.open(images=images, audio=audio, system=self._system)
            self._talk = Talk(session, self._system)
            self._talks.append(self._talk)
            self._files.clear()
        reply = self._talk.session.prompt(line, images=images, audio=audio, **self._options.prompt)
        times = self._show(reply)
        self._files.clear()
        if reply.turn is not None:
            self._talk.exchanges[reply.turn] = Exchange(line, reply.text, files)
        self._terminal.fresh_line()
        self._terminal.aside(figures(reply, times, self._context_tokens))

    def _show(self, reply: Reply) -> ReplyTimes:
        times, started_at = ReplyTimes(), self._clock.monotonic()
        with contextlib.closing(self._terminal.reply()) as shown:
            try:
                for piece in reply:
                    times.came(self._clock.monotonic() - started_at)
                    shown.add(piece)
            except KeyboardInterrupt:  # the reply has cancelled its turn
                reply.close()
        return times

    def _close(self) -> None:
        for talk in self._talks:
            if talk.session is not self._options.session:
                with contextlib.suppress(ClientError, StatefulError):
                    talk.session.close()


def _is_command(line: str) -> bool:
    return line.startswith("/") and not line.startswith("//")
