"""A keyword spotter that listens to a stream: `forward` takes a piece of audio and what it remembers, and returns both answers
and what to remember.

Owns the log-mel front end, the network and the decision when a word was said. Knows neither the words' names nor who serves it.
All of its memory is in its arguments, so rows of a batch can be different streams, and pieces of any lengths give what the
whole recording gives.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

SAMPLE_RATE: Final = 16_000
WINDOW: Final = 400  # samples of a frame, 25 ms
HOP: Final = 160  # samples between frames, 10 ms
FFT: Final = 512
BANDS: Final = 40
LOWEST_HZ, HIGHEST_HZ = 60.0, 7600.0
FLOOR: Final = 1e-4  # added to the power of a band, which is about 1 for speech at -40 dB
KERNEL: Final = 15  # frames that the convolution sees
STRIDE: Final = 5  # frames between its steps
STEP: Final = STRIDE * HOP  # samples of a step of the network, 50 ms
RECENT: Final = WINDOW - HOP + (KERNEL - STRIDE) * HOP  # samples that the next step sees again


def mel_filters() -> Tensor:
    """Triangular filters, at equal distances in mel, 2595 log10(1 + Hz / 700): (FFT // 2 + 1, BANDS).

    Each reaches from the middle of the band below to that of the band above.
    """
    lowest, highest = (2595 * math.log10(1 + hz / 700) for hz in (LOWEST_HZ, HIGHEST_HZ))
    mel = torch.linspace(lowest, highest, BANDS + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, FFT // 2 + 1, dtype=torch.float64).unsqueeze(1)
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()


class KeywordSpotter(nn.Module):
    """Finds `num_words` words in streams of 16 kHz audio.

    A word is recognized when its chance, smoothed over about `1 / smoothing` steps of 50 ms, exceeds `threshold`. It has to be
    below half of that for `pause` steps before the same word can be recognized again.
    """

    window: Tensor
    filters: Tensor

    def __init__(
        self,
        num_words: int = 8,
        channels: int = 192,
        units: int = 192,
        threshold: float = 0.5,
        smoothing: float = 0.6,
        pause: int = 4,
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self.smoothing = smoothing
        self.pause = pause
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)
        self.register_buffer("filters", mel_filters(), persistent=False)
        self.convolution = nn.Conv1d(BANDS, channels, KERNEL, STRIDE, bias=False)
        self.norm = nn.BatchNorm1d(channels)
        self.lstm = nn.LSTM(channels, units, batch_first=True)
        self.classes = nn.Linear(units, 1 + num_words)  # class 0: none of the words

    def states(self, rows: int) -> tuple[Tensor, ...]:
        """What is remembered of nothing; a server makes it from its declarations."""
        recurrent = torch.zeros(1, rows, self.lstm.hidden_size)
        words = torch.zeros(rows, self.classes.out_features - 1)
        return torch.zeros(rows, RECENT), recurrent, recurrent, words, words.long()

    def forward(
        self,
        audio: Tensor,
        recent: Tensor,
        hidden: Tensor,
        cell: Tensor,
        chance: Tensor,
        wait: Tensor,
    ) -> tuple[Tensor, ...]:
        """A piece of each stream: (rows, samples) from -1 to 1, a multiple of STEP samples.

        States, all zero at the beginning: `recent` (rows, RECENT) samples, `hidden` and `cell` (1, rows, units), `chance`
        (rows, num_words) and `wait` (rows, num_words), int64.

        Returns `word` (rows, steps), int64: 0, or which word (from 1) was recognized in that step of 50 ms; `score` (rows,
        steps), the chance of the likeliest word; then the new states.

        Raises:
            ValueError: the number of samples is not a multiple of STEP.
        """
        if audio.shape[1] == 0 or audio.shape[1] % STEP:
            raise ValueError(f"audio: {audio.shape[1]} samples are no multiple of {STEP} (50 ms)")
        samples = torch.cat([recent, audio], 1)
        logits, hidden, cell = self.listen(samples, hidden, cell)
        word, score, chance, wait = self.decide(logits.softmax(-1)[..., 1:], chance, wait)
        return word, score, samples[:, -RECENT:], hidden, cell, chance, wait

    def listen(
        self, samples: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Samples (rows, RECENT + steps * STEP) -> logits (rows, steps, 1 + num_words), and the LSTM's new states."""
        frames = samples.unfold(1, WINDOW, HOP) * self.window  # (rows, frames, WINDOW)
        spectrum = torch.view_as_real(torch.fft.rfft(frames, FFT))
        power = spectrum.square().sum(-1) @ self.filters  # (rows, frames, BANDS)
        level = ((power + FLOOR).log() + 2) / 4
        seen = functional.relu(self.norm(self.convolution(level.transpose(1, 2))))
        heard, (hidden, cell) = self.lstm(seen.transpose(1, 2), (hidden, cell))
        return self.classes(heard), hidden, cell

    def decide(self, chances: Tensor, chance: Tensor, wait: Tensor) -> tuple[Tensor, ...]:
        """Which words are recognized in chances (rows, steps, num_words): `word`, `score`, and the new `chance` and `wait`.

        `wait` counts the steps for which a word's chance has to stay low before it can be recognized.
        """
        words, scores = [], []
        for now in chances.unbind(1):
            chance = torch.lerp(chance, now, self.smoothing)
            score, likeliest = chance.max(1, keepdim=True)
            heard = (score > self.threshold) & (wait.gather(1, likeliest) == 0)
            wait = (wait - (chance < self.threshold / 2).long()).clamp(min=0)
            wait = torch.where(heard, wait.scatter(1, likeliest, self.pause), wait)
            words.append(torch.where(heard, likeliest + 1, 0))
            scores.append(score)
        return torch.cat(words, 1), torch.cat(scores, 1), chance, wait
