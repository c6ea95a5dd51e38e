"""A dialogue about one picture, end to end: start TorchServe, ask over gRPC and over HTTP in one session, stop it.

Exits with 1 when an answer is wrong. `make demo` packs the archive and runs this.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx

# Read by gRPC at import; otherwise it logs TorchServe's errors while the client finds out the profile.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from ts_stateful.client import Session, connect
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

ROOT = Path(__file__).resolve().parent.parent
SCENE = ROOT / "examples" / "shapes" / "scene.png"  # a red circle, a blue square, a yellow triangle


class Turn(NamedTuple):
    """A question and the word that its answer must contain."""

    question: str
    expected: str


OVER_GRPC = [
    Turn("How many shapes are there?", "three"),
    Turn("What color is the circle?", "red"),
    Turn("And the square?", "blue"),
    Turn("Which shape is yellow?", "triangle"),
    Turn("What color is it?", "yellow"),
]
OVER_HTTP = Turn("How many questions have I asked?", "six")


class Table:
    """A printed table with a row per turn, and the list of wrong answers."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def check(self, turn: Turn, text: str) -> None:
        """Compare an answer with the expected word."""
        if turn.expected not in text.lower():
            self.wrong.append(f"{turn.question} {text!r}, not {turn.expected!r}")

    def figures(self, first_ms: float, prompt_tokens: int, cached_tokens: int) -> None:
        """End the line of an answer with its cost."""
        print(
            f"   [first token {first_ms:.0f} ms, {prompt_tokens} prompt tokens, {cached_tokens} cached]"
        )


def ask_streaming(session: Session, turn: Turn, table: Table) -> None:
    """Ask over a gRPC stream; the time to the first token is the client's own."""
    print(f"grpc  {turn.question:34}", end=" ", flush=True)
    begin, first = time.monotonic(), 0.0
    text = ""
    reply = session.prompt(turn.question)
    for piece in reply:
        first = first or time.monotonic()
        text += piece
        print(piece, end="", flush=True)
    usage = reply.usage
    assert usage is not None  # a reply that has ended has one
    table.figures(
        1000 * (first - begin), usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens
    )
    table.check(turn, text)


def ask_over_http(server: TorchServe, session_id: str, turn: Turn, table: Table) -> None:
    """Ask in the same session over HTTP: the header names the session."""
    answer = httpx.post(
        f"{server.http_url}/predictions/{server.name}",
        headers={"ts_request_sequence_id": session_id},
        json={"prompt": turn.question},
        timeout=60,
        trust_env=False,
    )
    answer.raise_for_status()
    body = answer.json()
    print(f"http  {turn.question:34} {body['text']}", end="")
    usage = body["usage"]
    table.figures(
        body["timing"]["first_token_ms"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )
    table.check(turn, body["text"])


def main() -> int:
    """Run the dialogue; return 0 if every answer is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path, help="the archive with the shapes model")
    options = parser.parse_args()
    table = Table()
    server = TorchServe(
        TorchServeSettings(
            options.archive,
            config=ROOT / "config.properties",
            log_config=ROOT / "log4j2.xml",
            log_file=ROOT / "build" / "demo" / "server.log",
        )
    )
    print("starting TorchServe ...", flush=True)
    with server:
        print(f"TorchServe is up; a session on {SCENE.relative_to(ROOT)}:")
        with (
            connect(server.grpc_url, model=server.name) as client,
            client.open(images=[SCENE]) as session,
        ):
            for turn in OVER_GRPC:
                ask_streaming(session, turn, table)
            ask_over_http(server, session.session_id, OVER_HTTP, table)
    for wrong in table.wrong:
        print(f"wrong: {wrong}", file=sys.stderr)
    if not table.wrong:
        print("every answer is right")
    return 1 if table.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
