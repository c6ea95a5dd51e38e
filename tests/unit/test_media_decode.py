"""Bytes made into pixels, or refused."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ts_stateful.config import MediaConfig
from ts_stateful.errors import MediaError, MediaInvalid, MediaTooLarge
from ts_stateful.media.decode import FORMATS, decode_image

CONFIG = MediaConfig(max_bytes=2_000_000, max_pixels=1_000_000)
FIELD = "images[0].url"
RED, WHITE = (255, 0, 0), (255, 255, 255)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="1" height="1"/></svg>'


def decode(data: bytes, config: MediaConfig = CONFIG) -> Image.Image:
    return decode_image(data, config, FIELD)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def is_red(pixel: Any) -> bool:
    """Whether a pixel is red but for the losses of JPEG and WebP."""
    return all(abs(value - wanted) <= 5 for value, wanted in zip(pixel, RED, strict=True))


def chunk(name: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum


def png(size: tuple[int, int], depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG written by hand, for what Pillow does not write. `colour` is the type of the header."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + body


def frames(kind: str, number: int, size: tuple[int, int] = (8, 8)) -> bytes:
    """An animation whose first frame is red and whose others are grey."""
    rest = [Image.new("RGB", size, (i % 251,) * 3) for i in range(1, number)]
    return encoded(
        Image.new("RGB", size, RED), kind, save_all=True, append_images=rest, lossless=True
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_decoded_to_rgb(kind: str) -> None:
    """Each format that is taken gives a plain RGB image of its size, without metadata."""
    image = decode(encoded(Image.new("RGB", (7, 5), RED), kind))
    assert (type(image), image.mode, image.size, image.info) == (Image.Image, "RGB", (7, 5), {})
    assert is_red(image.getpixel((6, 4)))


@pytest.mark.parametrize(
    ("data", "pixel"),
    [
        pytest.param(png((1, 1), 16, 0, b"\0\x80\xff"), (128,) * 3, id="grey, 16 bits"),
        pytest.param(
            png((1, 1), 16, 0, b"\0\x80\xff", chunk(b"tRNS", b"\0\x80")),
            (128,) * 3,
            id="grey, 16 bits, with a transparent level",
        ),
        pytest.param(png((1, 1), 16, 2, b"\0\x80\xff\x40\0\xff\xff"), (128, 64, 255), id="16 bits"),
        pytest.param(
            png((1, 1), 16, 2, b"\0\x80\xff\x40\0\xff\xff", chunk(b"tRNS", b"\x80\xff\x40\0\0\0")),
            (128, 64, 255),
            id="16 bits, with a transparent colour",
        ),
        pytest.param(
            png((1, 1), 16, 6, b"\0\xff\xff\0\0\0\0\x80\0"), (255, 127, 127), id="16 bits, alpha"
        ),
        pytest.param(png((1, 1), 1, 0, b"\0\x80"), WHITE, id="black and white"),
        pytest.param(png((1, 1), 2, 0, b"\0\x80"), (170,) * 3, id="grey, 2 bits"),
        pytest.param(png((1, 1), 8, 4, b"\0\x80\x80"), (191,) * 3, id="grey and alpha"),
        pytest.param(png((1, 1), 8, 6, b"\0\xff\0\0\x80"), (255, 127, 127), id="half transparent"),
        pytest.param(png((1, 1), 8, 6, b"\0\x01\x02\x03\0"), WHITE, id="transparent"),
        pytest.param(
            png((1, 1), 8, 2, b"\0\x80\x40\xff", chunk(b"tRNS", b"\0\x80\0\x40\0\xff")),
            WHITE,
            id="a transparent colour",
        ),
        pytest.param(png((1, 1), 8, 3, b"\0\0", chunk(b"PLTE", b"\xff\0\0")), RED, id="palette"),
        pytest.param(
            png((1, 1), 8, 3, b"\0\0", chunk(b"PLTE", b"\xff\0\0"), chunk(b"tRNS", b"\0")),
            WHITE,
            id="palette with alpha",
        ),
        pytest.param(
            encoded(Image.new("P", (1, 1)), "GIF", transparency=0), WHITE, id="transparent GIF"
        ),
        pytest.param(
            encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 0)), "WEBP", lossless=True),
            WHITE,
            id="transparent WebP",
        ),
    ],
)
def test_depth_palette_and_alpha_become_rgb(data: bytes, pixel: tuple[int, int, int]) -> None:
    """16 bits keep their upper 8, palettes are looked up, transparency is laid on white."""
    assert decode(data).getpixel((0, 0)) == pixel


def test_cmyk_becomes_rgb() -> None:
    """A JPEG in CMYK shows its colours, not their inverse."""
    image = decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95))
    assert is_red(image.getpixel((4, 4)))


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (1000, 1000)])
def test_extreme_sizes_within_the_limit_are_taken(size: tuple[int, int]) -> None:
    """One pixel, a line of 10,000 and exactly as many pixels as the limit are images."""
    assert decode(encoded(Image.new("L", size))).size == size


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    """However a camera was held, the corner that was up and left is up and left."""
    upright = Image.new("RGB", (32, 16), "white")
    upright.paste(RED, (0, 0, 16, 8))
    stored_as = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright if stored_as is None else upright.transpose(stored_as)
    image = decode(encoded(stored, kind, exif=exif))
    assert image.size == (32, 16)
    for corner, green in (((2, 2), 0), ((29, 2), 255), ((2, 13), 255), ((29, 13), 255)):
        assert abs(image.getpixel(corner)[1] - green) < 40  # type: ignore[index]


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\xff\xff\0\0\0\0\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x02a\0\0\0\0\0\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0",
    ],
)
def test_an_orientation_that_means_nothing_is_passed_over(exif: bytes) -> None:
    """An orientation out of range, of another type or absent leaves the image as it is stored."""
    assert decode(encoded(Image.new("RGB", (4, 2)), "JPEG", exif=exif)).size == (4, 2)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    """Of an animation the first frame is decoded, however many follow and whatever is in them."""
    data = frames(kind, 300)
    assert decode(data).getpixel((0, 0)) == RED


def test_frames_behind_the_first_are_not_decoded() -> None:
    """A GIF of 10,000 frames of which all but the first are damaged is an image."""
    still = encoded(Image.new("RGB", (8, 8), RED), "GIF")
    broken_frame = b"\x2c\0\0\0\0\x08\0\x08\0\0\xff\x01\xff\0"
    assert decode(still[:-1] + broken_frame * 10_000 + b";").getpixel((0, 0)) == RED


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(png((50_000, 50_000), 8, 2, bytes(1000)), id="beyond Pillow's limit"),
        pytest.param(png((10_000, 10_000), 8, 2, bytes(1000)), id="Pillow warns"),
        pytest.param(png((1001, 1000), 8, 2, bytes(1000)), id="just beyond the limit"),
        pytest.param(png((2**31 - 1, 2**31 - 1), 8, 2, b""), id="largest"),
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(MediaTooLarge) as caught:
            decode(data)
    assert caught.value.to_body()["error"] == {
        "code": "media_too_large",
        "status": 413,
        "message": "the image has more than 1000000 pixels",
        "retryable": False,
        "field": FIELD,
    }


def test_a_warning_that_is_made_an_error_is_too_large() -> None:
    """Where warnings are errors, Pillow's warning of many pixels is still the client's error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MediaTooLarge):
            decode(png((10_000, 10_000), 8, 2, b""))


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
    return png((1, 1), 8, 0, b"\0\0", *chunks)


NOISE = encoded(Image.effect_noise((64, 64), 50).convert("RGB"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0", id="a byte"),
        pytest.param(b"not an image", id="text"),
        pytest.param(b"<html><img src=x></html>", id="HTML"),
        pytest.param(SVG, id="SVG"),
        pytest.param(b"%PDF-1.7\n" + NOISE, id="an image behind a PDF's head"),
        pytest.param(b"PK\x03\x04" + NOISE, id="an image behind an archive's head"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", id="PostScript"),
        pytest.param(NOISE[:8], id="signature only"),
        pytest.param(NOISE[:40], id="header only"),
        pytest.param(NOISE[: len(NOISE) // 2], id="half a PNG"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "JPEG")[:900], id="half a JPEG"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "GIF")[:900], id="half a GIF"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "BMP")[:2000], id="half a BMP"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50), "WEBP")[:900], id="half a WebP"),
        pytest.param(NOISE.replace(b"IHDR", b"IHDX"), id="no header"),
        pytest.param(png((0, 5), 8, 2, b""), id="no pixels"),
        pytest.param(png((4, 4), 8, 2, b""), id="no data"),
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
    """What is empty, truncated, damaged, unknown or a bomb is invalid, in our own words."""
    with pytest.raises(MediaInvalid) as caught:
        decode(data)
    error = caught.value
    assert error.message == (
        "the image is damaged or in an unknown format; taken are PNG, JPEG, WEBP, GIF, BMP"
    )
    assert (error.field, error.__suppress_context__) == (FIELD, True)


@pytest.mark.parametrize("tail", [b"PK\x03\x04" * 100, SVG, b"<script>", bytes(100_000)])
@pytest.mark.parametrize("kind", FORMATS)
def test_what_follows_an_image_is_dropped(kind: str, tail: bytes) -> None:
    """A polyglot that begins as an image is that image and nothing else."""
    data = encoded(Image.new("RGB", (8, 8), RED), kind)
    assert decode(data + tail).tobytes() == decode(data).tobytes()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_profile_is_dropped(kind: str) -> None:
    """A colour profile of 500 kB, even one that is none, changes no pixel and is not kept."""
    plain = Image.effect_noise((32, 32), 50).convert("RGB")
    image = decode(encoded(plain, kind, icc_profile=bytes(500_000)))
    assert image.tobytes() == decode(encoded(plain, kind)).tobytes()
    assert image.info == {}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damage_gives_an_image_or_a_media_error(data: st.DataObject) -> None:
    """Wherever bytes are changed or cut off, the answer is an RGB image or a media error."""
    kind = data.draw(st.sampled_from(FORMATS))
    file = bytearray(encoded(Image.linear_gradient("L").resize((16, 16)), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(file)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(MediaError):
            assert decode(bytes(file[:cut])).mode == "RGB"


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_lossless_pixels_come_back(width: int, height: int, data: st.DataObject) -> None:
    """What a lossless file stores is what is decoded, byte for byte."""
    pixels = data.draw(st.binary(min_size=3 * width * height, max_size=3 * width * height))
    image = Image.frombytes("RGB", (width, height), pixels)
    for kind in ("PNG", "BMP"):
        assert decode(encoded(image, kind)).tobytes() == pixels
