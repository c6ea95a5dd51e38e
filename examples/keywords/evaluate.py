"""Test the keyword spotter on texts and voices of no training: `python -m examples.keywords.evaluate`."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import yaml
from safetensors.torch import load_file

from examples.keywords.data import (
    FOLDER,
    KEYWORDS,
    UNHEARD,
    VARIANTS,
    WEIGHTS,
    Author,
    Noises,
    Order,
    Part,
    SessionPlacedAck,
    Stream,
    compose,
    record_all,
)
from examples.keywords.model.keywords import SAMPLE_RATE, STEP, KeywordSpotter
from examples.keywords.speech import Espeak, Utterance

REQUIRED_RECALL: Final = 0.97
ALLOWED_ALARMS: Final = 0.5  # a minute
LATEST_S: Final = 0.6  # after its end a word has to be recognized by then
STREAM_S: Final = 60
STEP_S: Final = STEP / SAMPLE_RATE
SHARDS, UTTERANCES = 8, 75  # recordings of each condition


class Condition(NamedTuple):
    """A row of the table."""

    name: str
    variants: tuple[str, ...]
    keywords: bool


CONDITIONS: Final = (
    Condition("voices of the training", VARIANTS, keywords=True),
    Condition("voices kept out", UNHEARD, keywords=True),
    Condition("no keywords, a third similar words", VARIANTS + UNHEARD, keywords=False),
)


@dataclass
class Score:
    """How well streams were understood."""

    seconds: float = 0.0
    said: int = 0
    false_alarms: int = 0
    delays_s: list[float] = field(default_factory=list)  # of what was recognized, from its end
    mistakes: Counter[str] = field(default_factory=Counter)

    def add(self, stream: Stream, recognized: Sequence[tuple[float, int]]) -> None:
        """Counts one stream, in which words (time, number) were recognized."""
        seconds = len(stream.samples) / SAMPLE_RATE
        said = [word for word in stream.words if word.end_s + LATEST_S < seconds]
        missed = [word for word in stream.words if word.start_s < seconds]
        self.seconds += seconds
        self.said += len(said)
        for time_s, number in recognized:
            fitting = [word for word in missed if _fits(word, time_s, number)]
            if fitting:
                missed.remove(fitting[0])
                self.delays_s += [time_s - word.end_s for word in fitting[:1] if word in said]
            else:
                self.false_alarms += 1
                self.mistakes[f"false {KEYWORDS[number - 1]}"] += 1
        self.mistakes.update(
            f"missed {KEYWORDS[word.number - 1]}" for word in missed if word in said
        )

    def __add__(self, other: Score) -> Score:
        return Score(
            self.seconds + other.seconds,
            self.said + other.said,
            self.false_alarms + other.false_alarms,
            self.delays_s + other.delays_s,
            self.mistakes + other.mistakes,
        )

    @property
    def recall(self) -> float:
        """The share of what was said that was recognized."""
        return len(self.delays_s) / max(1, self.said)

    @property
    def alarms_per_minute(self) -> float:
        """How often a word was recognized that was not said."""
        return self.false_alarms / max(1e-9, self.seconds / 60)


def _fits(word: SessionPlacedAck, time_s: float, number: int) -> bool:
    return word.number == number and word.start_s < time_s < word.end_s + LATEST_S


def load(weights: Path) -> KeywordSpotter:
    """The trained model as it is served."""
    served = yaml.safe_load((FOLDER / "model-config.yaml").read_text())["handler"]
    model = KeywordSpotter(**served["arguments"])
    model.load_state_dict(load_file(weights))
    return model.eval()


def recognize(model: KeywordSpotter, streams: Sequence[Stream]) -> list[list[tuple[float, int]]]:
    """What the model recognizes in streams of the same length, each a row of one batch: times and numbers."""
    audio = torch.from_numpy(np.stack([stream.samples for stream in streams]))
    states = model.states(len(streams))
    words = []
    with torch.inference_mode():
        for piece in audio.split(200 * STEP, 1):
            word, _, *new = model(piece, *states)
            states = tuple(new)
            words.append(word)
    rows = torch.cat(words, 1).tolist()
    return [[(step * STEP_S, word) for step, word in enumerate(row, 1) if word] for row in rows]


def order(condition: Condition, seed: int) -> list[Order]:
    """What is to be recorded for a condition."""
    author = Author(Part.TEST, random.Random(f"{condition.name} {seed}"))
    orders = []
    for shard in range(SHARDS):
        texts = [
            author.sentence()
            if condition.keywords and number % 2
            else author.words(0.2 * condition.keywords)
            for number in range(UTTERANCES)
        ]
        orders.append(Order(tuple(texts), condition.variants, f"{condition.name} {seed} {shard}"))
    return orders


def streams(utterances: Sequence[Utterance], rng: np.random.Generator) -> list[Stream]:
    """All utterances, in streams of STREAM_S."""
    noises = Noises(rng)
    made = []
    left = iter(utterances)
    seconds = sum(len(each.samples) for each in utterances) / SAMPLE_RATE
    for _ in range(round(seconds / STREAM_S)):
        made.append(compose(left, noises.take(STREAM_S * SAMPLE_RATE, rng), rng))
    return made


def line(name: str, score: Score) -> str:
    """A row of the table, in Markdown."""
    recall, delay = "-", "-"
    if score.delays_s:
        median, late = np.quantile(score.delays_s, [0.5, 0.95]) * 1000
        recall, delay = f"{score.recall:.1%}", f"{median:.0f}, {late:.0f} ms"
    minutes, alarms = score.seconds / 60, score.alarms_per_minute
    return f"| {name} | {minutes:.0f} | {score.said} | {recall} | {alarms:.2f} | {delay} |"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Test the keyword spotter on freshly synthesized speech of texts and voices of no training.",
        epilog=f"The exit status is 1 if it recognizes under {REQUIRED_RECALL * 100:g} %% of the words or gives more than "
        f"{ALLOWED_ALARMS} false alarms a minute.",
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything (%(default)s)")
    parser.add_argument("--threshold", type=float, help="of a word's chance (the model's)")
    parser.add_argument(
        "--threads", type=int, default=2, help="of torch, and processes that speak (%(default)s)"
    )
    parser.add_argument("--verbose", action="store_true", help="print which words were mistaken")
    return parser.parse_args()


def main() -> int:
    """Evaluate, print the table; 1 if the model fails."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    try:
        Espeak()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    model = load(options.weights)
    model.threshold = options.threshold or model.threshold
    orders = [each for condition in CONDITIONS for each in order(condition, options.seed)]
    shards = list(record_all(orders, options.threads))
    rng = np.random.default_rng(options.seed)
    print("| | minutes | keywords | recognized | false alarms a minute | delay, median and 95 % |")
    print("|---|---|---|---|---|---|")
    total = Score()
    for number, condition in enumerate(CONDITIONS):
        spoken = [each for shard in shards[number * SHARDS :][:SHARDS] for each in shard]
        made = streams(spoken, rng)
        score = Score()
        for stream, words in zip(made, recognize(model, made), strict=True):
            score.add(stream, words)
        print(line(condition.name, score))
        total += score
    print(line("all", total))
    if options.verbose:
        print(
            *(f"{count:4} {mistake}" for mistake, count in total.mistakes.most_common()), sep="\n"
        )
    return 0 if total.recall >= REQUIRED_RECALL and total.alarms_per_minute <= ALLOWED_ALARMS else 1


if __name__ == "__main__":
    sys.exit(main())
