"""A load test: N sessions of M turns at the same time, and what they measure from the client's side.

    ts-stateful serve examples/shapes/model
    python examples/load_test.py --sessions 16 --turns 4

Replies of a given length (`--tokens 64`) measure a model whatever it would say. Run it on another machine than the server's,
or both compete for the processor.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ts_stateful.client import PromptOptions, Server, connect

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"
QUESTIONS = (
    "How many shapes are there?",
    "What color is the circle?",
    "And the square?",
    "Which shape is yellow?",
)


class Turn(NamedTuple):
    """The measures of one turn."""

    first_s: float  # until the first piece of the reply
    whole_s: float
    prompt_tokens: int
    cached_tokens: int
    reply_tokens: int


def converse(server: Server, options: argparse.Namespace) -> list[Turn]:
    """Hold one conversation."""
    length = PromptOptions()
    if options.tokens:
        length = PromptOptions(max_new_tokens=options.tokens, ignore_eos=True)
    turns = []
    with server.open(images=[options.image]) as session:
        for number in range(options.turns):
            reply = session.prompt(QUESTIONS[number % len(QUESTIONS)], **length)
            begin, first = time.monotonic(), None
            for _ in reply:
                first = first or time.monotonic()
            end, usage = time.monotonic(), reply.usage
            assert usage is not None  # a reply that has ended has one
            turns.append(
                Turn(
                    (first or end) - begin,
                    end - begin,
                    usage.prompt_tokens,
                    usage.prompt_tokens_details.cached_tokens,
                    usage.completion_tokens,
                )
            )
    return turns


def report(turns: list[Turn], duration_s: float) -> None:
    """Print throughput, times and the cached share."""
    replies = sum(turn.reply_tokens for turn in turns)
    prompts = sum(turn.prompt_tokens for turn in turns)
    cached = sum(turn.cached_tokens for turn in turns)
    print(f"{len(turns)} turns in {duration_s:.1f} s")
    print(
        f"throughput   {len(turns) / duration_s:.1f} turns/s, {replies / duration_s:.1f} tokens/s"
    )
    for name, times in (
        ("first token", [turn.first_s for turn in turns]),
        ("whole turn", [turn.whole_s for turn in turns]),
    ):
        times.sort()
        middle, late = (times[math.ceil(share * len(times)) - 1] for share in (0.5, 0.95))
        print(f"{name:12} p50 {1000 * middle:.0f} ms, p95 {1000 * late:.0f} ms")
    print(f"cached       {cached} of {prompts} prompt tokens, {100 * cached / prompts:.0f} %")


def main() -> None:
    """Run all sessions, each in a thread, over one connection; an error ends the test."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="grpc://127.0.0.1:7070", help="also http://; %(default)s")
    parser.add_argument("--model", default="chat", help="default: %(default)s")
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    parser.add_argument("--sessions", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, help="of each reply (default: as the model ends)")
    options = parser.parse_args()
    with (
        connect(options.url, model=options.model) as server,
        ThreadPoolExecutor(options.sessions) as pool,
    ):
        begin = time.monotonic()
        talks = [pool.submit(converse, server, options) for _ in range(options.sessions)]
        turns = [turn for talk in talks for turn in talk.result()]
        report(turns, time.monotonic() - begin)


if __name__ == "__main__":
    main()
