"""The interactive session of the command, on pipes and on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.cli.chat import ChatLoop, ChatOptions
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import connect
from ts_stateful.protocol.errors import InternalError, SessionExpired

_HANDLERS = Path(__file__).resolve().parents[3] / "handlers"
Run = Callable[..., int]


def test_chat_is_a_session(
    run: Run, fake: FakeSessions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`chat` opens one session with the images so far, answers line by line, and closes it at the end of the input."""
    image = tmp_path / "scene.png"
    image.write_bytes(b"image")
    lines = f"/info\n/image {image}\nHello\n\n/image {image}\nAgain\n/info\n/help\n"
    assert run("chat", lines=lines) == 0
    out = capsys.readouterr().out
    assert reply_to("Hello") in out
    assert reply_to("Again") in out
    assert "no session yet" in out
    assert "10 of 20 cached" in out
    assert "ms to the first piece" in out
    assert "residency: device" in out
    assert "/quit" in out
    assert len(fake.of_kind("open")[0]["images"]) == 1
    assert [len(prompt.get("images", [])) for prompt in fake.of_kind("prompt")] == [0, 1]
    assert len(fake.closed) == 1


def test_chat_forks_and_goes_back(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/fork` continues in a copy, `/sessions` switches back, `/rewind` removes turns; the end closes all sessions."""
    lines = "/fork\n/sessions\none\ntwo\n/fork\nthree\n/sessions 1\n/rewind 1\nother\n/sessions\n"
    assert run("chat", lines=lines) == 0
    out = capsys.readouterr().out
    assert out.count("no session yet") == 2
    (one, first), (two, second) = (
        (name, [turn.prompt for turn in turns]) for name, turns in fake.sessions.items()
    )
    assert first == ["one", "other"]
    assert second == ["one", "two", "three"]
    assert f"* 2  {two}  2 turns" in out
    assert f"* 1  {one}  2 turns\n  2  {two}  3 turns" in out
    assert "back at turn 1, 17 tokens" in out
    assert fake.closed == {one, two}


def test_chat_refuses_what_there_is_not(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing turn or session is reported, and the conversation continues."""
    lines = "/rewind 1\none\n/rewind 2\n/rewind x\n/sessions 2\n/sessions x\ntwo\n"
    assert run("chat", lines=lines) == 1
    out = capsys.readouterr().out
    assert "error: turn_gap: there is no turn 2" in out
    assert out.count("no such command: ") == 3
    assert [turn.prompt for turn in next(iter(fake.sessions.values()))] == ["one", "two"]


def test_chat_notices_which_sessions_have_ended(url: str, fake: FakeSessions) -> None:
    """The list marks ended sessions and then drops them; a given session stays open."""
    out, lines = io.StringIO(), io.StringIO("/fork\none\n/sessions\n/sessions 1\ntwo\n")
    with connect(url) as server:
        given = server.open(session_id="mine")
        fake.fail("info", Fault(error=SessionExpired("idle")))
        fake.fail("prompt", Fault(error=SessionExpired("idle")))
        assert ChatLoop(server, Terminal(out), lines, ChatOptions(given)).run() == 1
    assert "  1  mine  ended\n* 2" in out.getvalue()
    assert "\n  1  mine  0 turns\n* 1  mine  0 turns\n" in out.getvalue()
    assert [turn.prompt for turn in fake.sessions["mine"]] == ["two"]
    assert fake.closed == set()


def test_chat_survives_errors(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed line is reported and the conversation continues; an ended session is replaced."""
    fake.fail("prompt", Fault(error=InternalError("id 7")), Fault(error=SessionExpired("idle")))
    assert (
        run("chat", lines="one\n/dance\ntwo\n/image no/such.png\nthree\nfour\n/quit\nfive\n") == 1
    )
    out = capsys.readouterr().out
    assert "error: internal: id 7" in out
    assert "no such command: /dance" in out
    assert "the next prompt opens a new one" in out
    assert "error: no/such.png: No such file" in out
    assert "the files were dropped" in out
    assert reply_to("four") in out
    assert len(fake.of_kind("open")) == 2
    assert "five" not in out


def test_chat_keeps_a_session_that_it_was_given(run: Run, url: str, fake: FakeSessions) -> None:
    """`chat --session` leaves the session open."""
    with connect(url) as server:
        server.open(session_id="mine")
    assert run("chat", "--session", "mine", lines="Hello\n") == 0
    assert len(fake.sessions["mine"]) == 1
    assert fake.closed == set()


def test_an_interrupted_reply_is_cancelled(url: str, fake: FakeSessions) -> None:
    """Ctrl-C in the middle of a reply ends the turn, and the conversation goes on."""

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if text and self.getvalue() == reply_to("one")[:6]:
                raise KeyboardInterrupt
            return written

    out = Interrupting()
    with connect(url) as server:
        lines = io.StringIO("one\ntwo\n")
        chat = ChatLoop(server, Terminal(out), lines, ChatOptions(), FakeClock())
        assert chat.run() == 0
    assert "cancelled]" in out.getvalue()
    assert reply_to("two") in out.getvalue()
    turns = next(iter(fake.sessions.values()))
    assert [turn.finish_reason for turn in turns] == ["cancelled", "stop"]


def test_a_terminal_gets_no_control_characters() -> None:
    """Text of a model cannot move the cursor of a terminal; a file receives it unchanged."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    tty, file = Tty(), io.StringIO()
    for stream in (tty, file):
        Terminal(stream).text("a\x1b]0;title\x07\tb\n")
        Terminal(stream).aside("note")
    assert tty.getvalue() == "a\ufffd]0;title\ufffd\tb\n\x1b[2mnote\x1b[0m\n"
    assert file.getvalue() == "a\x1b]0;title\x07\tb\nnote\n"


# Tests in the background may ignore Ctrl-C, and child processes inherit that.
_COMMAND = """\
import signal, sys
from ts_stateful.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


class _Pty:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "PYTHONPATH": str(_HANDLERS), "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Write to the terminal."""
        os.write(self.master, text.encode())

    def expect(self, text: str) -> None:
        """Read until the text was printed, and drop all up to it."""
        while text not in self.seen:
            assert select.select([self.master], [], [], 60)[0], self.seen
            self.seen += os.read(self.master, 4096).decode("utf-8", "replace")
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        """End the command if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


def test_chat_on_a_terminal(url: str, fake: FakeSessions) -> None:
    """On a terminal there is a prompt, Ctrl-C cancels the reply in progress, and Ctrl-D ends."""
    terminal = _Pty("chat", "--url", url)
    try:
        terminal.expect("> ")
        terminal.type("Hello\n")
        terminal.expect(f"{'You said'}")
        terminal.expect("to the first piece")
        terminal.expect("> ")
        fake.fail("continue", Fault(stalls=True))
        terminal.type("Wait\n")
        while len(fake.of_kind("continue")) < 2 or fake.faults["continue"]:
            select.select([], [], [], 0.01)
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.expect("cancelled]")
        terminal.expect("> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
    assert len(fake.closed) == 1
