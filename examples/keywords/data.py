"""What the keyword spotter is trained and tested on: texts, voices, recordings, and streams of them with noise.

Owns what of it is kept for tests: every fourth sentence and word, and two voices. `rng` decides everything else.
"""

from __future__ import annotations

import enum
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from examples.keywords.speech import LEVEL, SAMPLE_RATE, Espeak, Utterance, Voice

Samples = NDArray[np.float32]

FOLDER: Final = Path(__file__).parent
KEYWORDS: Final = tuple((FOLDER / "model" / "keywords.txt").read_text().split())
WEIGHTS: Final = FOLDER / "model" / "weights.safetensors"
ACCENTS: Final = ("en", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd")
VARIANTS: Final = ("", "+m1", "+m2", "+m3", "+m5", "+m6", "+m7", "+m8", "+f1", "+f2", "+f4", "+f5")
UNHEARD: Final = ("+m4", "+f3")  # variants that only tests have


class Part(enum.Enum):
    """Of the texts: what is trained on, and what is kept for tests."""

    TRAINING = "training"
    TEST = "test"

    def of(self, entries: Sequence[str]) -> list[str]:
        """Every fourth entry for tests, the others for training."""
        test = self is Part.TEST
        return [each for number, each in enumerate(entries) if (number % 4 == 3) == test]


class Author:
    """Writes texts of one part."""

    def __init__(self, part: Part, rng: random.Random) -> None:
        def read(name: str) -> str:
            return (FOLDER / "material" / f"{name}.txt").read_text()

        self._rng = rng
        self._sentences = part.of(read("sentences").splitlines())  # # stands for a keyword
        self._words = part.of(sorted({*read("words").split()}))
        self._similar = part.of(sorted({*read("similar").split()}))  # to keywords

    def sentence(self) -> str:
        """A sentence, mostly with one keyword or more."""
        frame = self._rng.choice(self._sentences)
        return "".join(self._rng.choice(KEYWORDS) if sign == "#" else sign for sign in frame)

    def words(self, keywords: float) -> str:
        """Words in no sense; `keywords` is the share of keywords, a third of the others resemble one."""
        kinds = (KEYWORDS, self._similar, self._words)
        weights = (keywords, (1 - keywords) / 3, (1 - keywords) * 2 / 3)
        chosen = self._rng.choices(kinds, weights, k=self._rng.randint(2, 9))
        text = "".join(self._rng.choice(kind) + self._rng.choice("     ,.") for kind in chosen)
        return text.replace(",", ", ").replace(".", ". ")


class Order(NamedTuple):
    """Texts to record in voices of these variants."""

    texts: tuple[str, ...]
    variants: tuple[str, ...]
    seed: str


def record(order: Order) -> list[Utterance]:
    """What the voices say, in the order of the texts; the same samples only in a fresh process."""
    rng = random.Random(order.seed)
    espeak = Espeak()
    utterances = []
    for text in order.texts:
        name = rng.choice(ACCENTS) + rng.choice(order.variants)
        voice = Voice(name, words_per_minute=rng.randint(120, 200), pitch=rng.randint(20, 80))
        utterances.append(espeak.say(text, voice))
    return utterances


def record_all(orders: Sequence[Order], processes: int) -> Iterator[list[Utterance]]:
    """What the orders give, one after the other, with a progress bar."""
    # Spawned, not forked: the caller may have threads of torch. A process each, so that seeds decide the samples.
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield from tqdm(pool.imap(record, orders), total=len(orders), desc="speak", unit="shard")


class SessionPlacedAck(NamedTuple):
    """A keyword in a stream; `number` from 1, in the order of KEYWORDS."""

    number: int
    start_s: float
    end_s: float


class Stream(NamedTuple):
    """Samples from -1 to 1 as a microphone delivers them, and the keywords in them."""

    samples: Samples
    words: list[SessionPlacedAck]


class Noises:
    """Noise of a root mean square of 1: white, pink, or the hum of a mains of 50 or 60 Hz."""

    SECONDS: Final = 60
    OF_EACH: Final = 4

    def __init__(self, rng: np.random.Generator) -> None:
        kinds = (_white, _pink, _hum)
        clips = [
            kind(self.SECONDS * SAMPLE_RATE, rng) for kind in kinds for _ in range(self.OF_EACH)
        ]
        self._clips = [
            (clip / np.sqrt(np.square(clip).mean())).astype(np.float32) for clip in clips
        ]

    def take(self, num_samples: int, rng: np.random.Generator) -> Samples:
        """Some of one of them, at most SECONDS."""
        clip: Samples = self._clips[rng.integers(len(self._clips))]
        begin = int(rng.integers(len(clip) - num_samples + 1))
        return clip[begin : begin + num_samples]


def _white(num_samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.standard_normal(num_samples)


def _pink(num_samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    return np.fft.irfft(spectrum / np.sqrt(np.arange(len(spectrum)) + 20.0), num_samples)


def _hum(num_samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    phase = np.arange(num_samples) / SAMPLE_RATE * rng.choice([50, 60])
    total = 0.02 * rng.standard_normal(num_samples)
    for harmonic in range(1, 12):
        strength = rng.exponential() / harmonic
        total += strength * np.sin(2 * np.pi * (harmonic * phase + rng.random()))
    return total


def compose(utterances: Iterator[Utterance], noise: Samples, rng: np.random.Generator) -> Stream:
    """As many utterances as fit, with breaks, in noise 15 to 40 dB below them or in none; the last one may be cut off.

    Every speaker is at a distance of his own, and the microphone has some gain.
    """
    loudness = 0.0 if rng.random() < 0.2 else LEVEL * _decibels(-rng.uniform(15, 40))
    samples = noise * np.float32(loudness)
    words: list[SessionPlacedAck] = []
    begin = 0
    while (begin := begin + int(rng.uniform(0.1, 1.2) * SAMPLE_RATE)) < len(samples):
        utterance = next(utterances, None)
        if utterance is None:
            break
        spoken = utterance.samples[: len(samples) - begin] / np.float32(2**15)
        samples[begin : begin + len(spoken)] += spoken * np.float32(_decibels(rng.uniform(-4, 4)))
        for word in utterance.words:
            if word.text in KEYWORDS:
                start_s, end_s = (begin / SAMPLE_RATE + s for s in (word.start_s, word.end_s))
                words.append(SessionPlacedAck(1 + KEYWORDS.index(word.text), start_s, end_s))
        begin += len(spoken)
    gain = np.float32(_decibels(rng.uniform(-15, 3)))
    return Stream((samples * gain).clip(-1, 1), words)


def _decibels(value: float) -> float:
    """The factor of an amplitude that so many dB are."""
    return float(10 ** (value / 20))
