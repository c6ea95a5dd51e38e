"""The interactive session of the command, on pipes and on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.support.clock import FakeClock
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from tests.support.ports import free_port
from ts_stateful.cli.chat import ChatLoop, ChatOptions
from ts_stateful.cli.chat.keyboard import Lines
from ts_stateful.cli.chat.markdown import MarkdownReply, end_of_block
from ts_stateful.cli.chat.talk import Exchange, Talk
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import Session, connect
from ts_stateful.protocol.errors import ContextTooLong, InternalError, MediaInvalid, SessionExpired

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
    assert "on the device; 1 KiB on the device" in out
    assert "[----------] 27 of 1,000" in out
    assert "connected to " in out
    assert "1,000 tokens of context; 2 images a prompt; a session ends after 10m00s of rest" in out
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
    assert "/rewind takes the number of a turn, or 0" in out
    assert out.count("there is no session ") == 2
    assert [turn.prompt for turn in next(iter(fake.sessions.values()))] == ["one", "two"]


def test_chat_notices_which_sessions_have_ended(url: str, fake: FakeSessions) -> None:
    """The list marks ended sessions and then drops them; a given session stays open."""
    out = io.StringIO()
    lines = Lines(io.StringIO("/fork\none\n/sessions\n/sessions 1\ntwo\n"))
    with connect(url) as server:
        given = server.open(session_id="mine")
        fake.fail("info", Fault(error=SessionExpired("idle")))
        fake.fail("prompt", Fault(error=SessionExpired("idle")))
        limits = server.hello().limits
        assert ChatLoop(server, limits, Terminal(out), lines, ChatOptions(given)).run() == 1
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
    assert reply_to("three") in out
    assert reply_to("four") in out
    assert len(fake.of_kind("open")) == 2
    assert "five" not in out


@pytest.mark.parametrize(
    "line",
    [
        b"caf\xe9",
        b"/image caf\xe9",
        b"/image https://[::1/cat.png",
        b"/image ~no.such.user/a.png",
        b"/image a\0b",
        b"/save ~no.such.user/a.md",
        b"/save a\0b",
        b"/rewind 9999999999",
        b"/rewind " + b"9" * 5000,
    ],
)
def test_an_odd_line_does_not_end_the_chat(url: str, fake: FakeSessions, line: bytes) -> None:
    """It is reported and counted, and the next one is a turn of the same session."""
    out, typed = io.StringIO(), io.TextIOWrapper(io.BytesIO(b"one\n" + line + b"\ntwo"), "utf-8")
    with connect(url) as server:
        limits = server.hello().limits
        chat = ChatLoop(server, limits, Terminal(out), Lines(typed), ChatOptions())
        assert chat.run() == 1
    (turns,) = fake.sessions.values()
    assert [turn.prompt for turn in turns] == ["one", "two"]


def test_a_prompt_may_begin_like_a_command(run: Run, fake: FakeSessions) -> None:
    """One slash of two is removed, and the rest is sent."""
    assert run("chat", lines="//help\n") == 0
    assert [prompt["prompt"] for prompt in fake.of_kind("prompt")] == ["/help"]


def test_files_are_checked_when_they_are_named(
    run: Run, fake: FakeSessions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server would refuse is refused at once, and not sent; a URL is the server's to fetch.

    A file that is dropped on a terminal comes in quotation marks.
    """
    sizes = {"good": 1, "empty": 0, "large": 101}
    good, empty, large = (str(tmp_path / name) for name in sizes)
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    named = (f"'{good}'", empty, large, str(tmp_path), "https://example.com/a.png", good)
    lines = "".join(f"/image {name}\n" for name in named)
    assert run("chat", lines=f"{lines}/image\n/audio {good}\n/images\nHello\n/images\n") == 1
    out = capsys.readouterr().out
    for reason in (
        f"error: {Path(empty).name} is empty",
        f"error: {Path(large).name} has 101 bytes; the server takes images of up to 100 bytes",
        f"error: {tmp_path}: Is a directory",
        "error: the server takes 2 images with a prompt",
        "/image FILE   send an image",
        "error: this model takes no clips",
        f"{good}\nhttps://example.com/a.png\n",
        "no files wait",
    ):
        assert reason in out, reason
    (opened,) = fake.of_kind("open")
    assert opened["images"] == [{"base64": "AA=="}, {"url": "https://example.com/a.png"}]


def test_files_of_a_prompt_that_failed_are_dropped(
    run: Run, fake: FakeSessions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next prompt would fail for the same file. A file of the options ends the command."""
    image = tmp_path / "image.png"
    image.write_bytes(b"image")
    fake.fail("open", Fault(error=MediaInvalid("not an image")))
    assert run("chat", lines=f"/image {image}\none\ntwo\n") == 1
    assert "the files were dropped" in capsys.readouterr().out
    assert "images" not in fake.of_kind("open")[-1]
    assert run("chat", "--image", str(tmp_path / "no.png"), lines="one\n") == 1
    assert "no.png: No such file" in capsys.readouterr().err


def test_chat_goes_back_begins_anew_and_saves(
    run: Run, fake: FakeSessions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/undo`, `/system`, `/new` and `/save`, which replaces only what this chat has written."""
    file, other = tmp_path / "talk.md", tmp_path / "other.md"
    other.write_text("mine")
    lines = f"/undo\none\ntwo\n/undo\nthree\n/fork\nfour\n/save {file}\n/undo\n/save {file}\n"
    lines += (
        f"/save {other}\n/system Be brief.\nfive\n/system\n/new\n/save {other}\n/undo\n/sessions\n"
    )
    assert run("chat", "--system", "Be kind.", lines=lines) == 1
    out = capsys.readouterr().out
    prompts = [[turn.prompt for turn in turns] for turns in fake.sessions.values()]
    assert prompts == [["one", "three"], ["one", "three"], ["five"]]
    assert [opened["system"] for opened in fake.of_kind("open")] == ["Be kind.", "Be brief."]
    said = (("one", 1), ("three", 2))
    turns = "".join(
        f"\n## {number}\n\n**You:** {text}\n\n**Model:** {reply_to(text)}\n"
        for text, number in said
    )
    assert file.read_text() == f"**System:** Be kind.\n{turns}"
    assert f"3 turns are in {file}" in out
    assert out.count(f"{other} exists; name another file") == 2
    assert other.read_text() == "mine"
    assert out.count("no session yet") == 2
    assert len(fake.closed) == 3


def test_a_saved_talk_says_what_it_lacks() -> None:
    """Turns from before the chat are not known to it; files are named."""
    with connect("grpc://127.0.0.1:1") as server:
        steps = server.steps()  # any session: it is not asked
        talk = Talk(cast("Session", steps), exchanges={3: Exchange("a", "b", ("cat.png",))})
    assert talk.markdown() == (
        "*(turns 1 to 2 are from before this chat)*\n\n## 3\n\n*cat.png*\n\n**You:** a\n\n**Model:** b\n"
    )


def test_an_error_in_mid_reply_is_on_a_line_of_its_own(
    run: Run, fake: FakeSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one that has a cure is followed by it."""
    fake.fail("prompt", Fault(events=1))
    fake.fail("continue", Fault(error=ContextTooLong("1001 tokens")))
    run("chat", lines="one\n")
    out = capsys.readouterr().out
    assert "\nerror: context_too_long: 1001 tokens\nthe session is full: /undo" in out


def test_a_server_that_is_down_is_reported_at_once(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read, without a retry, and with what to do."""
    url = f"grpc://127.0.0.1:{free_port()}"
    assert run("chat", "--url", url, lines="Hello\n") == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith(f"error: no server at {url} (")
    assert "start one with `ts-stateful serve`, or name yours with --url" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 0),
        ("one\ntwo", 0),
        ("one\n\n", 5),
        ("\n\none\n\ntwo", 7),
        ("one\n", 0),
        ("one\n ", 0),
        ("```\na\n\nb\n", 0),
        ("```\na\n\nb\n```\n\n", 14),
        ("````\n```\n\n```\n\n````\n\n", 21),
        ("~~~\n```\n\n~~~\n\n", 14),
        ("```\na\n```b\n\n", 0),
        ("```a``` b\n\n", 11),
    ],
)
def test_blocks_of_markdown(text: str, end: int) -> None:
    """A block ends after an empty line, but not within a fence."""
    assert end_of_block(text) == end


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("List<String>\n", ["List<String>"]),
        ("<think>\nhm\n</think>\n\n4", ["<think>", "hm", "</think>", "4"]),
        ("roses\r\nviolets", ["roses", "violets"]),
        ("a ![b](http://c.d/) e", ["a !b (http://c.d/) e"]),
        ("[a][1]\n\n[1]: http://c.d/\n", ["[a][1]", "[1]: http://c.d/"]),
        (
            "so \\(a_1\\)\n\\[\na \\\\\n+ b\n\\]",
            ["so \\(a_1\\)", " \\[", " a \\\\", " + b", " \\]"],
        ),
    ],
)
def test_a_reply_is_shown_whole(text: str, lines: list[str]) -> None:
    """Neither tags nor addresses of a reply are left out, and its lines stay apart."""
    out = io.StringIO()
    reply = MarkdownReply(out)
    for character in text:
        reply.add(character)
    reply.close()
    shown = (line.rstrip() for line in out.getvalue().splitlines())
    assert [line for line in shown if line] == lines


def test_replies_are_formatted_block_by_block() -> None:
    """What is shown of a finished block stays; control characters and hidden addresses are shown."""
    out = io.StringIO()
    reply = MarkdownReply(out)
    text = (
        "# Title\n\nsome **bold** [text](https://example.com)\x1b[2J\n\n```\ncode\n\n```\n\n1. last"
    )
    for character in text:
        reply.add(character)
    reply.close()
    shown = out.getvalue()
    for part in ("Title", "some bold text (https://example.com)\ufffd[2J", "code", "1 last"):
        assert shown.count(part) == 1, (part, shown)


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
        lines = Lines(io.StringIO("one\ntwo\n"))
        limits = server.hello().limits
        chat = ChatLoop(server, limits, Terminal(out), lines, ChatOptions(), FakeClock())
        assert chat.run() == 0
    assert "cancelled]" in out.getvalue()
    assert reply_to("two") in out.getvalue()
    turns = next(iter(fake.sessions.values()))
    assert [turn.finish_reason for turn in turns] == ["cancelled", "stop"]


def test_what_is_typed_is_not_echoed_into_a_reply() -> None:
    """The `^C` that cancels one would begin a line among those that are drawn again."""
    _, terminal = os.openpty()
    with os.fdopen(terminal, "w", encoding="utf-8") as stream:
        reply = MarkdownReply(stream)
        reply.add("one")
        is_on = termios.tcgetattr(stream)[3] & termios.ECHO
        reply.close()
        assert not is_on
        assert termios.tcgetattr(stream)[3] & termios.ECHO


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of a model cannot move the cursor of a terminal; a file receives it unchanged, and a dumb one is not dimmed."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    tty, file, dumb = Tty(), io.StringIO(), Tty()
    monkeypatch.setenv("TERM", "xterm")
    for stream in (tty, file):
        Terminal(stream).text("a\x1b]0;title\x07\tb\r\n")
        Terminal(stream).aside("note")
    monkeypatch.setenv("TERM", "dumb")
    Terminal(dumb).aside("note")
    assert dumb.getvalue() == "note\n"
    assert tty.getvalue() == "a\ufffd]0;title\ufffd\tb\n\x1b[2mnote\x1b[0m\n"
    assert file.getvalue() == "a\x1b]0;title\x07\tb\r\nnote\n"


# Tests in the background may ignore Ctrl-C, and child processes inherit that.
_COMMAND = """\
import signal, sys
from ts_stateful.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


# A terminal that does not answer where its cursor is.
_ENVIRON = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
_READS = "\x1b[?2004h"  # it asks for pasted text to be marked


class _Pty:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "PYTHONPATH": str(_HANDLERS), **_ENVIRON, **environ},
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


def test_chat_on_a_terminal(url: str, fake: FakeSessions, tmp_path: Path) -> None:
    """On a terminal there is a prompt, Ctrl-C cancels the reply in progress, and Ctrl-D ends."""
    terminal = _Pty("chat", "--url", url, XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.expect(_READS)
        terminal.type("Hello\r")
        terminal.expect(f"{'You said'}")
        terminal.expect("to the first piece")
        terminal.expect(_READS)
        fake.fail("continue", Fault(stalls=True))
        terminal.type("Wait\r")
        while len(fake.of_kind("continue")) < 2 or fake.faults["continue"]:
            select.select([], [], [], 0.01)
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.expect("cancelled]")
        terminal.expect(_READS)
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
    assert len(fake.closed) == 1


def test_pasted_lines_and_the_history_of_another_chat(
    url: str, fake: FakeSessions, tmp_path: Path
) -> None:
    """Pasted text is one prompt, lines can be joined, and the next chat remembers them; nobody else can read that."""
    for typed in ("\x1b[200~one\ntwo\x1b[201~\r", "\x1b[A\\\rthree\r"):
        terminal = _Pty("chat", "--url", url, XDG_STATE_HOME=str(tmp_path))
        try:
            terminal.expect(_READS)
            terminal.type(typed)
            terminal.expect("to the first piece")
            terminal.expect(_READS)
            terminal.type("\x04")
            assert terminal.process.wait(30) == 0
        finally:
            terminal.close()
    assert [prompt["prompt"] for prompt in fake.of_kind("prompt")] == [
        "one\ntwo",
        "one\ntwo\nthree",
    ]
    history = tmp_path / "ts-stateful" / "history"
    assert (history.stat().st_mode & 0o777, history.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_home_that_cannot_be_written_is_no_obstacle(url: str) -> None:
    """As that of a container's user; the history ends with the chat."""
    terminal = _Pty("chat", "--url", url, XDG_STATE_HOME="/proc")
    try:
        terminal.expect(_READS)
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()


def test_a_typed_line_that_is_not_utf8_is_not_taken(url: str, tmp_path: Path) -> None:
    """As from a terminal of another encoding. It is shown why, and the line can be corrected."""
    terminal = _Pty("chat", "--url", url, XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.expect(_READS)
        os.write(terminal.master, b"caf\xe9\r")
        terminal.expect("this is not UTF-8")
        terminal.type("\x7fe\r")
        terminal.expect("You said")
        terminal.expect(_READS)
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
