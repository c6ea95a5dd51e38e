"""What the keyword spotter of the examples is trained and tested on."""

from __future__ import annotations

import ctypes.util
import itertools
import random
import re

import numpy as np
import pytest
import torch

from examples.keywords.data import (
    FOLDER,
    KEYWORDS,
    UNHEARD,
    VARIANTS,
    Author,
    Noises,
    Part,
    SessionPlacedAck,
    compose,
)
from examples.keywords.speech import LEVEL, SAMPLE_RATE, Espeak, Utterance, Voice, Word
from examples.keywords.train import IGNORED, STEP_S, right_classes


def test_tests_are_kept_apart() -> None:
    """What is tested on is not trained on, and no other word has a keyword in it, as it sounds."""
    assert not {*VARIANTS} & {*UNHEARD}
    for name in ("sentences", "words", "similar"):
        text = (FOLDER / "material" / f"{name}.txt").read_text()
        spelled = text.lower().replace("musician", "")
        assert not [word for word in KEYWORDS if word in spelled]
        entries = text.splitlines() if name == "sentences" else text.split()
        training, test = (Part(part).of(sorted({*entries})) for part in ("training", "test"))
        assert not {*training} & {*test}
        assert 2 * len(test) < len(training)


@pytest.mark.parametrize("part", Part)
def test_texts(part: Part) -> None:
    """A seed decides the texts, which have as many keywords as they shall."""
    author, again = (Author(part, random.Random(1)) for _ in range(2))
    sentences = [author.sentence() for _ in range(100)]
    assert sentences == [again.sentence() for _ in range(100)]
    assert {word for word in KEYWORDS if any(word in each for each in sentences)} == {*KEYWORDS}
    others = " ".join(author.words(0.0) for _ in range(100))
    assert not {*re.findall("[a-z]+", others)} & {*KEYWORDS}
    assert any(word in author.words(0.5) for word in KEYWORDS)


def test_streams() -> None:
    """The words of a stream are where its utterances are, and those that do not fit are cut off."""
    utterance = Utterance(
        np.full(SAMPLE_RATE, 3000, np.int16), (Word("music", 0.25, 0.75), Word("cat", 0.8, 1.0))
    )
    rng = np.random.default_rng(0)
    noise = Noises(rng).take(10 * SAMPLE_RATE, rng)
    assert float(np.sqrt(np.square(noise).mean())) == pytest.approx(1, rel=0.1)
    stream = compose(itertools.repeat(utterance), noise, rng)
    assert len(stream.samples) == 10 * SAMPLE_RATE
    assert len(stream.words) > 3
    for word in stream.words:
        assert KEYWORDS[word.number - 1] == "music"
        begin, end = (int(s * SAMPLE_RATE) for s in (word.start_s - 0.25, word.end_s))
        before, during = (
            np.abs(stream.samples[s]).mean()
            for s in (slice(begin - 1000, begin), slice(begin, end))
        )
        assert begin == 0 or during > 2 * before


def test_right_classes() -> None:
    """A word's class is right from its end on; around that nothing is asked, and elsewhere no word is right."""
    classes = right_classes([SessionPlacedAck(3, 0.5, 1.0)], 100)
    assert ((classes == 3).nonzero().flatten() == torch.arange(20, 24)).all()
    assert (classes[[19, 24]] == IGNORED).all()
    assert not classes[: int(0.7 / STEP_S)].any()
    assert not classes[30:].any()


@pytest.mark.skipif(not ctypes.util.find_library("espeak-ng"), reason="needs eSpeak NG")
def test_speech() -> None:
    """eSpeak tells when each word was said, every voice is as loud, and an unknown one is refused."""
    espeak = Espeak()
    for name in ("en-us+m3", "en+f2"):
        spoken = espeak.say("Open the window, please. music. Listen!", Voice(name))
        words = [word.text for word in spoken.words]
        assert words == ["open", "the", "window", "please", "music", "listen"]
        middles_s = [(word.start_s + word.end_s) / 2 for word in spoken.words]
        assert middles_s == sorted(middles_s)
        assert spoken.words[-1].end_s <= len(spoken.samples) / SAMPLE_RATE
        loudness = np.sqrt(np.square(spoken.samples / 2**15).mean())
        assert float(loudness) == pytest.approx(LEVEL, rel=0.01)
    with pytest.raises(ValueError, match="no voice xx"):
        espeak.say("stop", Voice("xx"))
