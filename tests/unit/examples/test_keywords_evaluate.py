"""How a test of the keyword spotter of the examples is judged."""

from __future__ import annotations

import numpy as np
import pytest

from examples.keywords.data import SessionPlacedAck, Stream
from examples.keywords.evaluate import Score, line


def test_score() -> None:
    """A word counts where it is recognized soon after it was said, and once; all else is a false alarm."""
    words = [SessionPlacedAck(1, 1.0, 1.5), SessionPlacedAck(2, 3.0, 3.5)]
    stream = Stream(np.zeros(60 * 16_000, np.float32), words)
    score = Score()
    score.add(stream, [(0.9, 1), (1.6, 1), (1.7, 1), (3.6, 1)])
    assert score.recall == 0.5
    assert score.alarms_per_minute == 3
    assert score.delays_s == [pytest.approx(0.1)]
    assert score.mistakes == {"false banana": 3, "missed calendar": 1}
    assert (score + score).said == 4
    assert line("twice", score + score) == "| twice | 2 | 4 | 50.0% | 3.00 | 100, 100 ms |"


def test_a_word_at_the_end_of_a_stream() -> None:
    """Recognized or not, it does not count."""
    stream = Stream(np.zeros(16_000, np.float32), [SessionPlacedAck(1, 0.4, 0.8)])
    score = Score()
    score.add(stream, [(0.9, 1)])
    score.add(stream, [])
    assert (score.said, score.false_alarms, score.delays_s) == (0, 0, [])
