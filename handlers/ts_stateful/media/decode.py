"""Decoding of untrusted bytes to pixels: RGB, upright, opaque, without metadata. No message of Pillow leaves this module."""

from __future__ import annotations

import io

# Imported by name, as Pillow would otherwise load all plugins to find one.
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.encoded import check_size
from ts_stateful.protocol.errors import MediaError, MediaInvalid, MediaTooLarge

__all__ = ["FORMATS", "decode_image"]

FORMATS = tuple(
    plugin.format
    for plugin in (
        PngImagePlugin.PngImageFile,
        JpegImagePlugin.JpegImageFile,
        WebPImagePlugin.WebPImageFile,
        GifImagePlugin.GifImageFile,
        BmpImagePlugin.BmpImageFile,
    )
)
"""The accepted formats. TIFF is not: its tiles can be larger than its image, so its pixels do not bound its memory."""

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


def decode_image(data: bytes, config: MediaConfig, field: str) -> Image.Image:
    """Decode the image in `data`, of several frames the first: RGB, upright, transparency on white.

    The content decides the format, and the EXIF orientation the upright side. Colour profiles and all other metadata are
    dropped. Pillow refuses more than 178,956,970 pixels, also if `config.max_pixels` is larger.

    Raises:
        MediaTooLarge: more than `config.max_bytes` bytes, or by its header more than
            `config.max_pixels` pixels.
        MediaInvalid: it is empty, truncated, damaged or in no accepted format.
    """
    check_size(len(data), config.max_bytes, field)
    try:
        _refuse_repeats(data)
        # Reads the header only; `load` decodes, and of several frames the first.
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > config.max_pixels:
                raise _too_many_pixels(config.max_pixels, field)
            image.load()
            return _upright(_to_rgb(image), _orientation(image))
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(config.max_pixels, field) from None
    except Exception:
        # The boundary to Pillow's parsers, which raise almost every built-in error on hostile bytes.
        names = ", ".join(FORMATS)
        message = f"the image is damaged or in an unknown format; send one of {names}"
        raise MediaInvalid(message, field=field) from None


def _refuse_repeats(data: bytes) -> None:
    for start, part, limit in _MAX_REPEATS:
        if data.startswith(start) and data.count(part) > limit:
            raise ValueError("more repetitions than an honest file has")


def _too_many_pixels(max_pixels: int, field: str) -> MediaTooLarge:
    return MediaTooLarge(
        f"the image has more than {max_pixels} pixels; send a smaller one", field=field
    )


def _to_rgb(image: Image.Image) -> Image.Image:
    """Copy an image in RGB and without metadata."""
    if image.mode.startswith("I"):
        # 16 bits of grey: Pillow's own conversion clips values above 255 to white.
        image = image.point(lambda value: value * (1 / 256)).convert("L")
        image.info.pop("transparency", None)  # one of 65,536 levels; none of the 256 stands for it
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        rgb = Image.new("RGB", layer.size, "white")
        rgb.paste(layer, mask=layer.getchannel("A"))
    else:
        rgb = image.convert("RGB")
    rgb.info = {}
    return rgb


def _orientation(image: Image.Image) -> int:
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    return orientation if isinstance(orientation, int) else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)
