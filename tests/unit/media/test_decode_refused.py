"""Bytes that are no image, or more of one than is taken: refused in the package's own words."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support import decoding
from tests.support.hostile import SVG, bomb, chunk, raw_png
from tests.support.pictures import encoded
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decode import open_image
from ts_stateful.media.decoder.frames import FORMATS, Unfit
from ts_stateful.protocol.errors import MediaError, MediaInvalid, MediaTooLarge

CONFIG = MediaConfig(max_bytes=2_000_000, max_pixels=1_000_000)
FIELD = "images[0].url"


def decode(data: bytes, config: MediaConfig = CONFIG) -> Image.Image:
    return decoding.decode(data, config, FIELD)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bomb(), id="beyond Pillow's limit"),
        pytest.param(raw_png((10_000, 10_000), 8, 2, bytes(1000)), id="Pillow warns"),
        pytest.param(raw_png((1001, 1000), 8, 2, bytes(1000)), id="just beyond the limit"),
        pytest.param(raw_png((2**31 - 1, 2**31 - 1), 8, 2, b""), id="largest"),
        pytest.param(
            b"GIF89a\xff\xff\xff\xff\0\0\0\x2c\0\0\0\0\xff\xff\xff\xff\0\x08\x01\0\0;", id="GIF"
        ),
        pytest.param(
            b"GIF89a\1\0\1\0\0\0\0\x2c\0\0\0\0\xff\xff\xff\xff\0\x08\x01\0\0;",
            id="a frame larger than its GIF",
        ),
        pytest.param(
            b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 30000, 30000, 1, 24, 0, *[0] * 5),
            id="BMP",
        ),
    ],
)
def test_too_many_pixels_are_refused_from_the_header(data: bytes) -> None:
    """A file of a few kB that claims more pixels than the limit is refused before decoding."""
    assert len(data) < 10_000
    with pytest.raises(MediaTooLarge) as caught:
        decode(data)
    assert caught.value.to_body()["error"] == {
        "code": "media_too_large",
        "status": 413,
        "message": "the image has more than 1000000 pixels; send a smaller one",
        "retryable": False,
        "field": FIELD,
    }


def test_a_warning_that_is_made_an_error_is_too_large() -> None:
    """If warnings are errors, Pillow's warning of many pixels is still the client's error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Unfit, match="TOO_MANY_PIXELS"):
            open_image(raw_png((10_000, 10_000), 8, 2, b""), 10**9)


def test_too_many_bytes_are_refused() -> None:
    """More bytes than the limit are refused without a look at them."""
    data = encoded(Image.new("RGB", (4, 4)))
    assert decode(data, MediaConfig(max_bytes=len(data))).size == (4, 4)
    with pytest.raises(MediaTooLarge):
        decode(data, MediaConfig(max_bytes=len(data) - 1))


def repeated_scans() -> bytes:
    data = encoded(Image.effect_noise((64, 64), 50), "JPEG", progressive=True)
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last_scan * 200 + data[-2:]


def with_chunks(*chunks: bytes) -> bytes:
    return raw_png((1, 1), 8, 0, b"\0\0", *chunks)


NOISE = encoded(Image.effect_noise((64, 64), 50).convert("RGB"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0", id="a byte"),
        pytest.param(b"not an image", id="text"),
        pytest.param(b"<html><img src=x></html>", id="HTML"),
        pytest.param(SVG, id="SVG"),
        pytest.param(b"%PDF-1.7\n" + NOISE, id="an image after a PDF's head"),
        pytest.param(b"PK\x03\x04" + NOISE, id="an image after an archive's head"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", id="PostScript"),
        pytest.param(NOISE[:8], id="signature only"),
        pytest.param(NOISE[:40], id="header only"),
        pytest.param(NOISE[: len(NOISE) // 2], id="half a PNG"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "JPEG")[:900], id="half a JPEG"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "GIF")[:900], id="half a GIF"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "BMP")[:2000], id="half a BMP"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "WEBP")[:900], id="half a WebP"),
        pytest.param(NOISE.replace(b"IHDR", b"IHDX"), id="no header"),
        pytest.param(raw_png((0, 5), 8, 2, b""), id="no pixels"),
        pytest.param(raw_png((4, 4), 8, 2, b""), id="no data"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "TIFF"), id="TIFF"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "PPM"), id="PPM"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "ICO"), id="ICO"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "TGA"), id="TGA"),
        pytest.param(repeated_scans(), id="a JPEG of 200 scans"),
        pytest.param(
            with_chunks(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(5_000_000)))),
            id="a text that decompresses to 5 MB",
        ),
        pytest.param(
            with_chunks(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000))) * 100),
            id="100 texts of 1 MB",
        ),
        pytest.param(
            with_chunks(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(5_000_000)))),
            id="a profile that decompresses to 5 MB",
        ),
        pytest.param(
            with_chunks(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1000))) * 1000),
            id="1000 profiles",
        ),
    ],
)
def test_what_is_no_image_is_invalid(data: bytes) -> None:
    """Empty, truncated, damaged and unknown bytes and bombs are invalid, without the library's words."""
    with pytest.raises(MediaInvalid) as caught:
        decode(data)
    error = caught.value
    assert error.message == (
        "the image is damaged or in an unknown format; send one of PNG, JPEG, WEBP, GIF, BMP"
    )
    assert error.field == FIELD
    assert error.__context__ is None


@settings(max_examples=60)
@given(st.data())
def test_damage_gives_an_image_or_a_media_error(data: st.DataObject) -> None:
    """Wherever bytes are changed or cut off, the answer is an RGB image or a media error."""
    kind = data.draw(st.sampled_from(FORMATS))
    file = bytearray(encoded(Image.linear_gradient("L").resize((16, 16)), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(file)))
    with contextlib.suppress(MediaError):
        assert decode(bytes(file[:cut])).mode == "RGB"
