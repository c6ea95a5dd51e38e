"""The keyword spotter of the examples: however a stream is cut, and whoever is beside it, it hears the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from examples.keywords.client import read_wav, whole
from examples.keywords.data import FOLDER, KEYWORDS, WEIGHTS
from examples.keywords.evaluate import load
from examples.keywords.model.keywords import STEP, KeywordSpotter
from ts_stateful.config.schema import load_config
from ts_stateful.recurrent.program import load_program, torch_dtype

MAX_WEIGHTS_BYTES = 3_000_000
SAMPLES = sorted((FOLDER / "samples").glob("*.wav"))


@pytest.fixture(scope="module")
def model() -> KeywordSpotter:
    """The trained model; read only."""
    return load(WEIGHTS)


@pytest.fixture(scope="module")
def audio() -> Tensor:
    """All samples as rows of one batch, cut to the shortest: (rows, samples)."""
    recordings = [np.frombuffer(read_wav(path), np.int16) for path in SAMPLES]
    length = min(len(each) for each in recordings)
    return torch.from_numpy(np.stack([each[:length] for each in recordings])) / 2**15


def listen(model: KeywordSpotter, audio: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Words and scores of audio that comes in pieces of these numbers of steps, again and again."""
    states = model.states(len(audio))
    words: list[Tensor] = []
    scores: list[Tensor] = []
    begin = 0
    with torch.inference_mode():
        while begin < audio.shape[1]:
            end = begin + lengths[len(words) % len(lengths)] * STEP
            word, score, *new = model(audio[:, begin:end], *states)
            states = tuple(new)
            words.append(word)
            scores.append(score)
            begin = end
    return torch.cat(words, 1), torch.cat(scores, 1)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples(path: Path) -> None:
    """It hears the keywords that a sample is named after, in their order, and no others."""
    said = [word for word in path.stem.split("-") if word in KEYWORDS]
    assert [KEYWORDS[number - 1] for _, number in whole(read_wav(path))] == said != []


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_pieces(model: KeywordSpotter, audio: Tensor, lengths: list[int]) -> None:
    """However recordings are cut, the words are the same and at the same times, and so are the scores."""
    words, scores = listen(model, audio, [audio.shape[1] // STEP])
    cut_words, cut_scores = listen(model, audio, lengths)
    assert torch.equal(cut_words, words)
    assert torch.allclose(cut_scores, scores, atol=1e-4)


def test_rows(model: KeywordSpotter, audio: Tensor) -> None:
    """What a microphone gets does not depend on those beside it."""
    words, scores = listen(model, audio, [2])
    assert words.any()
    for row in range(len(audio)):
        alone_words, alone_scores = listen(model, audio[row : row + 1], [2])
        assert torch.equal(alone_words[0], words[row])
        assert torch.allclose(alone_scores[0], scores[row], atol=1e-4)


def test_loudness(model: KeywordSpotter, audio: Tensor) -> None:
    """Recordings at a third of their loudness have the same words."""
    loud, _ = listen(model, audio, [2])
    soft, _ = listen(model, audio / 3, [2])
    assert loud[loud > 0].tolist() == soft[soft > 0].tolist()


def test_silence_and_noise(model: KeywordSpotter) -> None:
    """It hears no words where there are none."""
    sound = torch.randn(3, 400 * STEP, generator=torch.Generator().manual_seed(0))
    words, _ = listen(model, sound * torch.tensor([[0.0], [0.001], [0.03]]), [2])
    assert not words.any()


@pytest.mark.parametrize("length", [0, 100, STEP + 1])
def test_wrong_length(model: KeywordSpotter, length: int) -> None:
    """A piece that is no multiple of 50 ms is refused with its length."""
    with pytest.raises(ValueError, match=f"audio: {length} samples are no multiple of 800"):
        model(torch.zeros(1, length), *model.states(1))


def test_declared(model: KeywordSpotter) -> None:
    """The configuration declares the tensors that the model takes and gives, and its weights are small."""
    declared = load_config(yaml.safe_load((FOLDER / "model-config.yaml").read_text())).state
    assert declared is not None
    program = load_program(declared, FOLDER / "model", torch.device("cpu"), "keywords")
    states = model.states(1)
    for mine, state in zip(states, declared.states, strict=True):
        assert mine.movedim(state.rows_dim, 0)[0].shape == state.shape
        assert mine.dtype == torch_dtype(state.datatype)
        assert not mine.any()
    outputs, new = program([torch.zeros(1, 1600)], list(states))
    assert [(output.shape, output.dtype) for output in outputs] == [
        ((1, 2), torch_dtype(output.datatype)) for output in declared.outputs
    ]
    assert [state.shape for state in new] == [state.shape for state in states]
    assert WEIGHTS.stat().st_size <= MAX_WEIGHTS_BYTES


def decided(chances: list[float], *, of_other: list[float] | None = None) -> list[int]:
    """The words of one stream in which the first of two words has these chances."""
    model = KeywordSpotter(2, threshold=0.5, smoothing=1.0, pause=3)
    other = of_other or [0.0] * len(chances)
    steps = torch.tensor([list(zip(chances, other, strict=True))])
    words, *_ = model.decide(steps, torch.zeros(1, 2), torch.zeros(1, 2).long())
    return [int(word) for word in words[0]]


def test_a_word_is_recognized_once() -> None:
    """A chance that stays high, or falls but a little, or but for a moment, is one word; after a pause it is the next."""
    assert decided([0.1, 0.4, 0.9, 0.9, 0.9, 0.9]) == [0, 0, 1, 0, 0, 0]
    assert decided([0.9, 0.4, 0.4, 0.4, 0.4, 0.9]) == [1, 0, 0, 0, 0, 0]
    assert decided([0.9, 0.1, 0.1, 0.9]) == [1, 0, 0, 0]
    assert decided([0.9, 0.1, 0.1, 0.1, 0.9]) == [1, 0, 0, 0, 1]


def test_another_word_may_follow_at_once() -> None:
    """The pause is one of that word alone."""
    assert decided([0.9, 0.1, 0.1], of_other=[0.0, 0.9, 0.9]) == [1, 2, 0]
