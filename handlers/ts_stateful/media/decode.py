"""Decoding of untrusted bytes. Runs in a decoder process.

Pixels are RGB, upright, opaque and without metadata; samples are of one channel, at the rate of a model.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

# Imported by name, as Pillow would otherwise load all plugins to find one.
from PIL import (  # noqa: F401
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from ts_stateful.media.decoder.frames import AUDIO_FORMATS, FORMATS, Audible, Samples, Status, Unfit

__all__ = ["open_clip", "open_image", "to_pixels", "to_samples"]

_ORIENTATION_TAG = 0x0112  # EXIF 2.3, 4.6.4
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Parts that cost a sender a few bytes, and the server much work for each repetition: a pass over all
# pixels, a profile to decompress. Honest files have about ten scans and one profile; compressed data
# matches by chance less often. (first bytes of the file, the part, its largest count)
_MAX_REPEATS = (
    (b"\xff\xd8", b"\xff\xda", 100),  # scans of a progressive JPEG
    (b"\x89PNG", b"iCCP", 16),
)
_MAX_CHANNELS = 8
_RATES = range(4_000, 192_001)
_UNKNOWN_FRAMES = 2**62  # or more: FLAC that was written into a pipe
# Frames that are read at once: the clip as a whole is in memory at the model's rate alone.
_BLOCK_FRAMES = 65_536


def open_image(data: bytes, max_pixels: int) -> Image.Image:
    """Open an image by its header. The content decides the format.

    Pillow refuses more than 178,956,970 pixels, also if `max_pixels` is larger.

    Raises:
        Unfit: it has more than `max_pixels`.
        Exception: Pillow's parsers raise almost every built-in error on hostile bytes.
    """
    _refuse_repeats(data)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unfit(Status.TOO_MANY_PIXELS) from None
    if image.width * image.height > max_pixels:
        raise Unfit(Status.TOO_MANY_PIXELS)
    return image


def to_pixels(image: Image.Image) -> Image.Image:
    """Decode an opened image, of several frames the first: RGB, upright, transparency on white.

    The EXIF orientation decides the upright side. Colour profiles and all other metadata are dropped. Raises as `open_image`.
    """
    try:
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unfit(Status.TOO_MANY_PIXELS) from None
    rgb, orientation = _to_rgb(image), image.getexif().get(_ORIENTATION_TAG)
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return rgb if method is None else rgb.transpose(method)


def _refuse_repeats(data: bytes) -> None:
    for start, part, limit in _MAX_REPEATS:
        if data.startswith(start) and data.count(part) > limit:
            raise ValueError("more repetitions than an honest file has")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB, itself if it is. Its metadata are of no interest: only pixels leave the process."""
    if image.mode.startswith("I"):
        # 16 bits of grey: Pillow's own conversion clips values above 255 to white.
        image = image.point(lambda value: value * (1 / 256)).convert("L")
        image.info.pop("transparency", None)  # one of 65,536 levels; none of the 256 stands for it
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        rgb = Image.new("RGB", layer.size, "white")
        rgb.paste(layer, mask=layer.getchannel("A"))
        return rgb
    return image if image.mode == "RGB" else image.convert("RGB")


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
