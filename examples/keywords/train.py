"""Train the keyword spotter on synthesized speech: `python -m examples.keywords.train`.

Every step of 50 ms has a right class, and the streams' LSTM states are carried on from batch to batch, as they are when it
serves.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from examples.keywords.data import (
    KEYWORDS,
    VARIANTS,
    WEIGHTS,
    Author,
    Noises,
    Order,
    Part,
    SessionPlacedAck,
    compose,
    record_all,
)
from examples.keywords.model.keywords import RECENT, SAMPLE_RATE, STEP, KeywordSpotter
from examples.keywords.speech import Espeak, Utterance

SHARDS, SENTENCES, WORDS = 24, 120, 180  # recordings, and of which kinds in each
KEYWORD_SHARE: Final = 0.2
ROWS: Final = 32  # streams
STEPS_OF_STREAM: Final = 200  # in one batch, 10 s
BATCHES: Final = 1800
RATE: Final = 3e-3
KEYWORD_WEIGHT: Final = 3.0  # of a step in which a word is to be heard, against others
BEGIN_ANEW: Final = 0.25  # the chance that a stream does so with a batch
STEP_S: Final = STEP / SAMPLE_RATE
IGNORED: Final = -100
# A word's class is right from its end on and for a while. Before and after that either answer will do.
HEARD_TO_S, LENIENT_TO_S = 0.2, 0.4


def right_classes(words: Sequence[SessionPlacedAck], num_steps: int) -> Tensor:
    """The right class of every step of a stream: (num_steps,), IGNORED where either answer will do."""
    classes = torch.zeros(num_steps, dtype=torch.int64)

    def write(begin_s: float, end_s: float, value: int) -> None:
        begin, end = (max(0, round(s / STEP_S)) for s in (begin_s, end_s))
        classes[begin:end] = value

    for word in words:
        write((word.start_s + word.end_s) / 2, word.end_s + LENIENT_TO_S, IGNORED)
    for word in words:
        write(word.end_s, word.end_s + HEARD_TO_S, word.number)
    return classes


def lessons(archive: Sequence[Utterance], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endlessly: new streams (ROWS, RECENT + samples), and their right classes (ROWS, STEPS_OF_STREAM)."""
    rng = np.random.default_rng(seed)
    noises = Noises(rng)
    utterances = (archive[int(rng.integers(len(archive)))] for _ in iter(int, 1))
    length = RECENT + STEPS_OF_STREAM * STEP
    while True:
        rows = [compose(utterances, noises.take(length, rng), rng) for _ in range(ROWS)]
        audio = torch.from_numpy(np.stack([row.samples for row in rows]))
        shift_s = RECENT / SAMPLE_RATE  # the first step is behind what it sees again
        words = [
            [
                SessionPlacedAck(number, start_s - shift_s, end_s - shift_s)
                for number, start_s, end_s in row.words
            ]
            for row in rows
        ]
        yield audio, torch.stack([right_classes(each, STEPS_OF_STREAM) for each in words])


def train(archive: Sequence[Utterance], seed: int, num_batches: int) -> KeywordSpotter:
    """Learns, with a progress bar."""
    torch.manual_seed(seed)
    model = KeywordSpotter(len(KEYWORDS)).train()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, num_batches, pct_start=0.1)
    weights = torch.tensor([1.0, *[KEYWORD_WEIGHT] * len(KEYWORDS)])
    _, hidden, cell, *_ = model.states(ROWS)
    lesson = lessons(archive, seed)
    average = 0.0
    with tqdm(range(num_batches), desc="train", unit="batch") as bar:
        for number in bar:
            audio, classes = next(lesson)
            kept = torch.rand(1, ROWS, 1) > BEGIN_ANEW
            logits, hidden, cell = model.listen(audio, hidden.detach() * kept, cell.detach() * kept)
            loss = functional.cross_entropy(
                logits.flatten(0, 1), classes.flatten(), weights, ignore_index=IGNORED
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average += (float(loss.detach()) - average) * max(0.02, 1 / (number + 1))
            bar.set_postfix(loss=f"{average:.4f}")
    return model


def record_archive(seed: int, share: float, processes: int) -> list[Utterance]:
    """The recordings to learn from."""
    author = Author(Part.TRAINING, random.Random(f"training {seed}"))
    orders = []
    for shard in range(max(1, round(SHARDS * share))):
        texts = [author.sentence() for _ in range(SENTENCES)]
        texts += [author.words(KEYWORD_SHARE) for _ in range(WORDS)]
        orders.append(Order(tuple(texts), VARIANTS, f"training {seed} {shard}"))
    return [each for shard in record_all(orders, processes) for each in shard]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train the keyword spotter and save its weights.",
        epilog="The shipped weights came from the defaults. For a quick look: --share 0.05.",
    )
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything (%(default)s)")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of recordings and batches (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="of torch, and processes that speak (%(default)s)"
    )
    return parser.parse_args()


def main() -> int:
    """Record, train, save."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    try:
        Espeak()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    start_s = time.monotonic()
    archive = record_archive(options.seed, options.share, options.threads)
    hours = sum(len(each.samples) for each in archive) / SAMPLE_RATE / 3600
    print(f"{len(archive)} recordings, {hours:.1f} hours")
    model = train(archive, options.seed, max(1, round(BATCHES * options.share)))
    save_file(model.state_dict(), options.out)
    minutes = (time.monotonic() - start_s) / 60
    print(f"{options.out}: trained in {minutes:.1f} minutes with {options.threads} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
