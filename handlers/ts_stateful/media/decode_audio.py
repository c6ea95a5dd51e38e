"""Decoding of untrusted bytes to samples: one channel, at the rate of a model. Runs in a decoder process."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ts_stateful.media.decoder.frames import AUDIO_FORMATS, Audible, Samples, Status, Unfit

__all__ = ["open_clip", "to_samples"]

_MAX_CHANNELS = 8
_RATES = range(4_000, 192_001)
_UNKNOWN_FRAMES = 2**62  # or more: FLAC that was written into a pipe
# Frames that are read at once: the clip as a whole is in memory at the model's rate alone.
_BLOCK_FRAMES = 65_536


class Clip(NamedTuple):
    """A clip that is open, and the rate to which it is converted."""

    file: Any
    rate: int

    @property
    def num_samples(self) -> int:
        """The samples that it has at that rate, one more or less."""
        return int(self.file.frames * self.rate / self.file.samplerate)


def open_clip(data: bytes, wanted: Audible) -> Clip:
    """Open a clip by its header. The content decides the format.

    Raises:
        Unfit: it is too long, or too short for the model.
        Exception: libsndfile's parsers may raise anything on hostile bytes.
    """
    soundfile: Any = import_module("soundfile")  # an extra
    file = soundfile.SoundFile(io.BytesIO(data))
    if file.format.removesuffix("EX") not in AUDIO_FORMATS:
        raise ValueError(f"{file.format} is not accepted")
    if file.frames >= _UNKNOWN_FRAMES:
        raise ValueError("no length in its header")
    if file.channels > _MAX_CHANNELS or file.samplerate not in _RATES:
        raise ValueError("channels or a rate that no clip of speech has")
    seconds = file.frames / file.samplerate
    if seconds > wanted.max_seconds:
        raise Unfit(Status.TOO_LONG)
    if seconds < wanted.min_seconds:
        raise Unfit(Status.TOO_SHORT)
    return Clip(file, wanted.rate)


def to_samples(clip: Clip) -> Samples:
    """Decode an opened clip: the mean of its channels, resampled. Raises as `open_clip`."""
    soxr: Any = import_module("soxr")  # an extra
    file, rate = clip
    stream = soxr.ResampleStream(file.samplerate, rate, 1, dtype="float32")
    parts, left = [], file.frames
    while left > 0:
        block = file.read(min(left, _BLOCK_FRAMES), dtype="float32", always_2d=True)
        left -= len(block)
        if not len(block):
            raise ValueError("it ends before its header says so")
        mono = np.ascontiguousarray(block.mean(axis=1))
        parts.append(stream.resample_chunk(mono, last=left <= 0))
    samples = np.concatenate(parts)
    if not np.isfinite(samples).all():
        raise ValueError("it has samples that are no numbers")
    return samples
