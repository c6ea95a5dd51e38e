"""Replies streamed over gRPC by the client library, with the time to the first token and the tokens that were cached.

Start the server, then the program:

    ts-stateful serve examples/shapes/model
    python examples/stream_grpc.py "What color is the circle?" "And the square?"
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ts_stateful.client import Session, connect

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"
QUESTIONS = ("How many shapes are there?", "What color is the circle?", "And the square?")


def ask(session: Session, question: str) -> None:
    """Print a reply piece by piece, then its cost."""
    print(question, end=" ", flush=True)
    begin, first = time.monotonic(), None
    reply = session.prompt(question)  # nothing is sent before the loop
    for piece in reply:
        first = first or time.monotonic()
        print(piece, end="", flush=True)
    assert reply.usage is not None  # a reply that has ended has one
    print(
        f"  [first token {1000 * ((first or begin) - begin):.0f} ms,"
        f" {reply.usage.prompt_tokens} prompt tokens,"
        f" {reply.usage.prompt_tokens_details.cached_tokens} cached, {reply.finish_reason}]"
    )


def main() -> None:
    """Ask all questions in one session."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="default: three")
    parser.add_argument("--url", default="grpc://127.0.0.1:7070", help="default: %(default)s")
    parser.add_argument("--model", default="chat", help="default: %(default)s")
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    options = parser.parse_args()

    # The end of the block closes the session, then the connection.
    with (
        connect(options.url, model=options.model) as server,
        server.open(images=[options.image]) as session,
    ):
        for question in options.questions:
            ask(session, question)
        info = session.info()
        print(f"{info.turns} turns, {info.tokens} tokens in session {session.session_id}")


if __name__ == "__main__":
    main()
