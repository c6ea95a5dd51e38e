"""Decoders for tests: in processes as in an engine, and in the test's own process."""

from __future__ import annotations

import atexit
import functools

from PIL import Image

from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decode import open_clip, open_image, to_pixels, to_samples
from ts_stateful.media.decoder.frames import Audible, Samples
from ts_stateful.media.decoder.pool import DecoderPool, Lease
from ts_stateful.protocol.errors import MediaInvalid

__all__ = ["PlainDecoder", "decode", "decode_clip"]


@functools.cache
def _pool(config: MediaConfig) -> DecoderPool:
    pool = DecoderPool(config)
    atexit.register(pool.close)
    return pool


def decode(data: bytes, config: MediaConfig, field: str = "") -> Image.Image:
    """Decode an image in a decoder process, which further calls with the same configuration use too."""
    with Lease(_pool(config)) as lease:
        return lease.decode_image(data, field)


def decode_clip(data: bytes, config: MediaConfig, wanted: Audible, field: str = "") -> Samples:
    """Decode a clip in the same way."""
    with Lease(_pool(config)) as lease:
        return lease.decode_audio(data, field, wanted)


class PlainDecoder:
    """A decoder without a process, for tests of other things."""

    def decode_image(self, data: bytes, field: str) -> Image.Image:
        """Return the pixels."""
        try:
            return to_pixels(open_image(data, 10**8))
        except Exception as error:  # of Pillow
            raise MediaInvalid("no image", field=field) from error

    def decode_audio(self, data: bytes, field: str, wanted: Audible) -> Samples:
        """Return the samples."""
        try:
            return to_samples(open_clip(data, wanted))
        except Exception as error:  # of libsndfile
            raise MediaInvalid("no clip", field=field) from error
