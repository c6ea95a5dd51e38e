"""A dialogue about one picture on TorchServe: ask, stream, cancel, and kill the engine in the middle of a reply.

Exits with 1 when an answer is wrong. `make demo` packs the archive and runs this.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Read by gRPC at import; otherwise it logs TorchServe's errors while the client finds out the profile.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
sys.path.append(str(Path(__file__).parent / "shapes"))

from descriptions import is_right
from scenes import DEMO
from ts_stateful.client import Reply, Session, connect
from ts_stateful.protocol.answers import Usage
from ts_stateful.serving.server import LocalServer
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

ROOT: Final = Path(__file__).resolve().parent.parent
SCENE: Final = ROOT / "examples" / "shapes" / "scene.png"  # the picture of DEMO
COLUMNS: Final = 98
INDENT: Final = 34  # of the replies
DESCRIBE: Final = "Describe the picture."
BEFORE: Final = 3  # turns before the description
# A description takes a fraction of a second. If it ends before the cancel or the kill arrives, it is asked for again.
ATTEMPTS: Final = 20
WORDS_BEFORE_KILL: Final = 5
WORD_S: Final = 0.06  # of a description on the screen: it comes faster than anyone can read


class Screen:
    """Replies as they come, wrapped between words, in a column beside the questions."""

    def __init__(self) -> None:
        self._column = 0
        self._is_wrapped = False

    def asks(self, question: str) -> None:
        """Begin the line of a question."""
        self._put(f"{question:{INDENT}}")
        self._is_wrapped = False

    def says(self, piece: str, word_s: float) -> None:
        """Print a piece of a reply, `word_s` seconds a word."""
        for word in filter(None, piece.replace(" ", "\n ").split("\n")):
            if word.startswith(" ") and self._column + len(word) > COLUMNS:
                self.end()
                self._is_wrapped = True
            self._put(word if self._column else " " * INDENT + word.strip())
            time.sleep(word_s)

    def notes(self, text: str) -> None:
        """Print what happened: on the line of a short reply, below a long one."""
        if self._is_wrapped or self._column + len(text) + 5 > COLUMNS:
            self.end()
        self._put(f"   [{text}]" if self._column else f"{' ' * INDENT}[{text}]")
        self.end()

    def end(self) -> None:
        """End the line, if one has begun."""
        if self._column:
            print(flush=True)
        self._column = 0

    def _put(self, text: str) -> None:
        print(text, end="", flush=True)
        self._column += len(text)


class Costs:
    """Prompt tokens that were computed, beside those of a server that computes the whole prompt in every turn."""

    def __init__(self, opened: Usage) -> None:
        self._picture = self._computed = opened.prompt_tokens  # the first tokens of every prompt
        self._turns = self._prompts = 0
        self._encodings = 1

    def add(self, usage: Usage) -> None:
        """Count a turn. If its cached tokens do not include the picture, the picture was encoded again."""
        cached = usage.prompt_tokens_details.cached_tokens
        self._turns += 1
        self._prompts += usage.prompt_tokens
        self._computed += usage.prompt_tokens - cached
        self._encodings += cached < self._picture

    def rows(self) -> Iterator[str]:
        """Yield the lines of a table."""
        head = f"what these {self._turns} turns cost"
        yield f"{head:{INDENT}}{'here':>8}{'on a server that recomputes':>32}"
        yield f"{'prompt tokens computed':{INDENT}}{self._computed:8,}{self._prompts:32,}"
        yield f"{'pictures encoded':{INDENT}}{self._encodings:8,}{self._turns:32,}"


class Dialogue:
    """Turns about the picture, which are printed, checked and counted."""

    def __init__(self, server: LocalServer, opened: Usage) -> None:
        self.wrong: list[str] = []
        self.costs = Costs(opened)
        self._server = server
        self._screen = Screen()

    def ask(self, session: Session, question: str, expected: str) -> None:
        """Ask a question with an answer of one word."""
        reply = session.prompt(question)
        for _ in self._pieces(reply, question):
            pass
        self._check(question, reply.text, reply.text == expected)

    def describe(self, session: Session, word_s: float) -> str:
        """Ask for a description, print it at `word_s` seconds a word, and return it."""
        reply = session.prompt(DESCRIBE)
        for _ in self._pieces(reply, DESCRIBE, word_s):
            pass
        self._check(DESCRIBE, reply.text, is_right(DEMO, reply.text))
        return reply.text

    def cancel(self, session: Session, expected: str) -> None:
        """Cancel the description in a fork of the session, and go on there."""
        for _ in range(ATTEMPTS):
            with session.fork(at_turn=BEFORE) as fork:
                reply = fork.prompt(DESCRIBE)
                for number, _ in enumerate(self._pieces(reply, DESCRIBE)):
                    if number == 0:
                        reply.cancel()
                self._check(DESCRIBE, reply.text, expected.startswith(reply.text))
                if reply.finish_reason == "cancelled":
                    self._screen.notes(f"cancelled after {len(reply.text.split())} words")
                    self.ask(fork, "What color is the circle?", "red")
                    return
                self._screen.notes("it ended before the cancel arrived; once more")
        self._check("a cancel", f"too late, {ATTEMPTS} times", False)

    def kill(self, session: Session, expected: str) -> None:
        """Kill the engine in the middle of the description, in another fork: it ends as if nothing had happened."""
        for _ in range(ATTEMPTS):
            with session.fork(at_turn=BEFORE) as fork:
                reply = fork.prompt(DESCRIBE)
                pause_s = self._kill_within(reply)
                self._check("a reply through a kill", reply.text, reply.text == expected)
                assert reply.timing is not None
                if reply.timing.restored_from is not None:  # otherwise the reply had ended before
                    self._screen.notes(
                        f"the reply went on after {pause_s:.1f} s, to the same text as above"
                    )
                    return
                self._screen.notes("it ended before the kill; once more")
        self._check("a kill", f"too late, {ATTEMPTS} times", False)

    def _kill_within(self, reply: Reply) -> float:
        """Kill the engine after some words of a reply, and return the longest pause after that in seconds."""
        pause_s, last_at = 0.0, None  # when the last piece came, once the engine is killed
        for text in self._pieces(reply, DESCRIBE):
            if last_at is not None:
                pause_s = max(pause_s, time.monotonic() - last_at)
                last_at = time.monotonic()
            elif (num_words := len(text.split())) >= WORDS_BEFORE_KILL:
                (engine,) = self._server.engines()
                engine.kill()
                last_at = time.monotonic()
                self._screen.end()
                self._screen.notes(
                    f"kill -9 {engine.pid}: the engine was killed after {num_words} words"
                )
        return pause_s

    def _pieces(self, reply: Reply, question: str, word_s: float = 0.0) -> Iterator[str]:
        """Print a reply as it comes, then its figures. Yield its text so far after each piece."""
        self._screen.asks(question)
        began, first_s = time.monotonic(), 0.0
        for piece in reply:
            first_s = first_s or time.monotonic() - began
            self._screen.says(piece, word_s)
            yield reply.text
        usage = reply.usage
        assert usage is not None  # a reply that has ended has one
        self.costs.add(usage)
        cached = usage.prompt_tokens_details.cached_tokens
        self._screen.notes(
            f"first token {1000 * first_s:.0f} ms, {cached} of {usage.prompt_tokens} tokens cached"
        )

    def _check(self, question: str, text: str, is_right: bool) -> None:
        if not is_right:
            self.wrong.append(f"{question} {text!r}")


def converse(server: LocalServer, word_s: float = WORD_S) -> list[str]:
    """Hold the dialogue, and return the wrong answers."""
    with (
        connect(server.grpc_url, model=server.name) as client,
        connect(server.http_url, model=server.name) as http,
        client.open(images=[SCENE]) as session,
    ):
        assert session.opened is not None
        usage = session.opened.usage
        print(f"a session on {SCENE.relative_to(ROOT)} is open: {usage.prompt_tokens} tokens\n")
        dialogue = Dialogue(server, usage)
        dialogue.ask(session, "How many shapes are there?", "three")
        dialogue.ask(session, "What color is the circle?", "red")
        dialogue.ask(session, "And the square?", "blue")
        text = dialogue.describe(session, word_s)
        dialogue.ask(session, "And the triangle?", "yellow")
        print("\nin the same session, over HTTP:")
        dialogue.ask(http.attach(session.session_id), "How many questions have I asked?", "six")
        print("\ncancelled:")
        dialogue.cancel(session, text)
        print("\nthe engine is killed:")
        dialogue.kill(session, text)
    print("", *dialogue.costs.rows(), "", sep="\n")
    return dialogue.wrong


def main() -> int:
    """Run the dialogue; return 0 if every answer is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path, help="the archive with the shapes model")
    options = parser.parse_args()
    settings = TorchServeSettings(
        options.archive,
        config=ROOT / "config.properties",
        log_config=ROOT / "log4j2.xml",
        log_file=ROOT / "build" / "demo" / "server.log",
    )
    print("starting TorchServe ...", flush=True)
    with TorchServe(settings) as server:
        wrong = converse(server)
    for each in wrong:
        print(f"wrong: {each}", file=sys.stderr)
    if not wrong:
        print("every answer is right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
