"""Clips of audio, decoded in a process that can do nothing else."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from tests.support.decoders import idle_pids
from tests.support.pictures import noise, png
from tests.support.sounds import sound, wav
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import Audible, Samples
from ts_stateful.media.decoder.pool import DecoderPool, Lease
from ts_stateful.protocol.errors import MediaError, MediaInvalid, MediaTooLarge

RATE = 16_000
WANTED = Audible(RATE, 0.1, 2.0)
CONFIG = MediaConfig(max_bytes=1_000_000, max_pixels=1_000_000)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    """One decoder for all clips."""
    pool = DecoderPool(CONFIG)
    yield pool
    pool.close()


def decoded(pool: DecoderPool, data: bytes, wanted: Audible = WANTED) -> Samples:
    with Lease(pool) as lease:
        return lease.decode_audio(data, "audio[0].base64", wanted)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "WAVEX"])
def test_samples_come_back(pool: DecoderPool, kind: str) -> None:
    """Exactly, where the rate is that of the model."""
    clip = sound(1, 1.3)
    assert np.array_equal(decoded(pool, wav(clip, kind=kind)), clip)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000, 192_000])
def test_another_rate_is_converted(pool: DecoderPool, rate: int) -> None:
    """A tone stays what it is, and as long as it was."""
    times = np.arange(rate) / rate
    tone = (0.5 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    found = decoded(pool, wav(tone, rate))
    assert abs(len(found) - RATE) <= 1
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(found)) / RATE)
    middle = slice(RATE // 4, 3 * RATE // 4)
    assert np.abs(found[middle] - expected[middle]).max() < 1e-3


def test_channels_become_one(pool: DecoderPool) -> None:
    """Their mean."""
    left, right = sound(1, 0.5), sound(2, 0.5)
    found = decoded(pool, wav(np.stack([left, right], axis=1)))
    assert np.abs(found - (left + right) / 2).max() < 1e-4


def test_images_and_clips_take_turns(pool: DecoderPool) -> None:
    """In one process."""
    for seed in range(3):
        with Lease(pool) as lease:
            assert lease.decode_image(png(noise(seed)), "").size == (40, 56)
        assert len(decoded(pool, wav(sound(seed)))) == RATE // 2
    assert len(idle_pids(pool)) == 1


def _with_frames(data: bytes, num_bytes: int) -> bytes:
    """Return a WAV file whose header claims so many bytes of samples."""
    at = data.index(b"data") + 4
    return data[:at] + struct.pack("<I", num_bytes) + data[at + 4 :]


def _without_length() -> bytes:
    """Return a FLAC file as it is written into a pipe: its STREAMINFO has no number of samples."""
    data = bytearray(wav(sound(1), kind="FLAC"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


def _numbers_that_are_none() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.full(RATE, np.nan), RATE, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (wav(sound(1, 2.1)), MediaTooLarge, "longer than 2 s"),
        (wav(sound(1, 0.05)), MediaInvalid, "shorter than 0.1 s"),
        (b"", MediaInvalid, "damaged or in an unknown format; send one of WAV, FLAC"),
        (b"RIFF" + bytes(100), MediaInvalid, "damaged"),
        (png(noise(1)), MediaInvalid, "damaged"),
        (wav(sound(1), kind="AIFF"), MediaInvalid, "unknown format"),
        (wav(sound(1))[:30], MediaInvalid, "damaged"),
        (wav(sound(1), kind="FLAC")[:900], MediaInvalid, "damaged"),
        (_numbers_that_are_none(), MediaInvalid, "damaged"),
        (_without_length(), MediaInvalid, "damaged"),
        (wav(sound(1), 3_999), MediaInvalid, "damaged"),
        (bytes(1_000_001), MediaTooLarge, "more than 1000000 bytes"),
    ],
    ids=[
        "long",
        "short",
        "empty",
        "header alone",
        "image",
        "AIFF",
        "half of a WAV header",
        "half of a FLAC file",
        "not numbers",
        "no length",
        "slow",
        "large",
    ],
)
def test_others_are_refused(
    pool: DecoderPool, data: bytes, kind: type[MediaError], message: str
) -> None:
    """With the field, and a way out; the decoder goes on."""
    with pytest.raises(kind, match=message) as refused:
        decoded(pool, data)
    assert refused.value.field == "audio[0].base64"
    assert len(decoded(pool, wav(sound(1)))) == RATE // 2


def test_a_header_that_lies_costs_nothing(pool: DecoderPool) -> None:
    """What the file has counts."""
    honest = wav(sound(1, 1.0))
    assert len(decoded(pool, _with_frames(honest, 2**31))) == RATE


def test_a_configured_length_is_the_bound_too() -> None:
    """`handler.media.maxAudioSec`."""
    pool = DecoderPool(MediaConfig(max_audio_sec=0.5))
    try:
        with pytest.raises(MediaTooLarge, match=r"longer than 0\.5 s"):
            decoded(pool, wav(sound(1, 0.6)))
    finally:
        pool.close()
