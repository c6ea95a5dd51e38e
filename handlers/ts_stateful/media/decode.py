"""Decoding of untrusted bytes to pixels: RGB, upright, opaque, without metadata. Runs in a decoder process."""

from __future__ import annotations

import io

# Imported by name, as Pillow would otherwise load all plugins to find one.
from PIL import (  # noqa: F401
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from ts_stateful.media.decoder.frames import FORMATS, Status, Unfit

__all__ = ["open_image", "to_pixels"]

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
