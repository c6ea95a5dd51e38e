"""Bytes made into pixels: of every format, depth and mode the right ones. What is refused is in `test_media_decode_refused`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support import decoding
from tests.support.hostile import SVG, chunk, raw_png
from tests.support.pictures import encoded
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import FORMATS

CONFIG = MediaConfig(max_bytes=2_000_000, max_pixels=1_000_000)
FIELD = "images[0].url"
RED, WHITE = (255, 0, 0), (255, 255, 255)


def decode(data: bytes, config: MediaConfig = CONFIG) -> Image.Image:
    return decoding.decode(data, config, FIELD)


def is_red(pixel: Any) -> bool:
    """Return True if a pixel is red but for the losses of JPEG and WebP."""
    return all(abs(value - wanted) <= 5 for value, wanted in zip(pixel, RED, strict=True))


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
        pytest.param(raw_png((1, 1), 16, 0, b"\0\x80\xff"), (128,) * 3, id="grey, 16 bits"),
        pytest.param(
            raw_png((1, 1), 16, 0, b"\0\x80\xff", chunk(b"tRNS", b"\0\x80")),
            (128,) * 3,
            id="grey, 16 bits, with a transparent level",
        ),
        pytest.param(
            raw_png((1, 1), 16, 2, b"\0\x80\xff\x40\0\xff\xff"), (128, 64, 255), id="16 bits"
        ),
        pytest.param(
            raw_png(
                (1, 1), 16, 2, b"\0\x80\xff\x40\0\xff\xff", chunk(b"tRNS", b"\x80\xff\x40\0\0\0")
            ),
            (128, 64, 255),
            id="16 bits, with a transparent colour",
        ),
        pytest.param(
            raw_png((1, 1), 16, 6, b"\0\xff\xff\0\0\0\0\x80\0"),
            (255, 127, 127),
            id="16 bits, alpha",
        ),
        pytest.param(raw_png((1, 1), 1, 0, b"\0\x80"), WHITE, id="black and white"),
        pytest.param(raw_png((1, 1), 2, 0, b"\0\x80"), (170,) * 3, id="grey, 2 bits"),
        pytest.param(raw_png((1, 1), 8, 4, b"\0\x80\x80"), (191,) * 3, id="grey and alpha"),
        pytest.param(
            raw_png((1, 1), 8, 6, b"\0\xff\0\0\x80"), (255, 127, 127), id="half transparent"
        ),
        pytest.param(raw_png((1, 1), 8, 6, b"\0\x01\x02\x03\0"), WHITE, id="transparent"),
        pytest.param(
            raw_png((1, 1), 8, 2, b"\0\x80\x40\xff", chunk(b"tRNS", b"\0\x80\0\x40\0\xff")),
            WHITE,
            id="a transparent colour",
        ),
        pytest.param(
            raw_png((1, 1), 8, 3, b"\0\0", chunk(b"PLTE", b"\xff\0\0")), RED, id="palette"
        ),
        pytest.param(
            raw_png((1, 1), 8, 3, b"\0\0", chunk(b"PLTE", b"\xff\0\0"), chunk(b"tRNS", b"\0")),
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


def test_frames_after_the_first_are_not_decoded() -> None:
    """A GIF of 10,000 frames of which all but the first are damaged is an image."""
    still = encoded(Image.new("RGB", (8, 8), RED), "GIF")
    broken_frame = b"\x2c\0\0\0\0\x08\0\x08\0\0\xff\x01\xff\0"
    assert decode(still[:-1] + broken_frame * 10_000 + b";").getpixel((0, 0)) == RED


@pytest.mark.parametrize("tail", [b"PK\x03\x04" * 100, SVG, b"<script>", bytes(100_000)])
@pytest.mark.parametrize("kind", FORMATS)
def test_what_follows_an_image_is_dropped(kind: str, tail: bytes) -> None:
    """A polyglot that begins as an image is that image and nothing else."""
    data = encoded(Image.new("RGB", (8, 8), RED), kind)
    assert decode(data + tail).tobytes() == decode(data).tobytes()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_profile_is_dropped(kind: str) -> None:
    """A colour profile of 500 kB, valid or not, changes no pixel and is not kept."""
    plain = Image.effect_noise((32, 32), 50).convert("RGB")
    image = decode(encoded(plain, kind, icc_profile=bytes(500_000)))
    assert image.tobytes() == decode(encoded(plain, kind)).tobytes()
    assert image.info == {}


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_lossless_pixels_come_back(width: int, height: int, data: st.DataObject) -> None:
    """The pixels of a lossless file are decoded byte for byte."""
    pixels = data.draw(st.binary(min_size=3 * width * height, max_size=3 * width * height))
    image = Image.frombytes("RGB", (width, height), pixels)
    for kind in ("PNG", "BMP"):
        assert decode(encoded(image, kind)).tobytes() == pixels
