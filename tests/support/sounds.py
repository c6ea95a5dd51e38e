"""Clips of audio that tests play to models."""

from __future__ import annotations

import base64
import io

import numpy as np
import soundfile  # type: ignore[import-untyped]

from tests.support.pictures import Picture, noise
from ts_stateful.language.network.load import Model
from ts_stateful.media.decoder.frames import Samples

__all__ = ["Medium", "media_of", "sound", "wav", "wav_base64"]

Medium = Picture | Samples
RATE = 16_000


def sound(seed: int, seconds: float = 0.5) -> Samples:
    """A clip of random samples."""
    rng = np.random.default_rng(seed)
    # As a file of 16 bits has them.
    return (rng.integers(-9000, 9000, int(seconds * RATE)) / 2**15).astype(np.float32)


def wav(clip: Samples, rate: int = RATE, kind: str = "WAV") -> bytes:
    """A clip as the bytes of a file of 16 bits a sample."""
    buffer = io.BytesIO()
    soundfile.write(buffer, clip, rate, format=kind, subtype="PCM_16")
    return buffer.getvalue()


def wav_base64(clip: Samples) -> str:
    """A clip as the protocol's `base64`."""
    return base64.b64encode(wav(clip)).decode()


def media_of(model: Model) -> list[Medium]:
    """Return two pictures, two clips, or both, as the model takes them; none for a text model."""
    kinds = model.encoder.kinds if model.encoder else ()
    media: dict[str, list[Medium]] = {
        "images": [noise(1), noise(2, 80, 30)],
        "audio": [sound(1), sound(2, 0.8)],
    }
    return [medium for kind in kinds for medium in media[kind]]
