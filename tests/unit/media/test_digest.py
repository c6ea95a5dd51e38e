"""Names for the content of images."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ts_stateful.media.decode import open_image, to_pixels
from ts_stateful.media.digest import content_digest, file_digest


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_the_digest_names_the_content() -> None:
    """The same pixels in another format or with other metadata have the same digest."""
    image = Image.effect_noise((8, 8), 50).convert("RGB")
    exif = Image.Exif()
    exif[0xA420] = "id"
    files = [saved(image, "PNG"), saved(image, "BMP"), saved(image, "PNG", exif=exif)]
    pictures = [to_pixels(open_image(file, 64)) for file in files]
    assert len({content_digest(picture, "model") for picture in pictures}) == 1
    assert len(content_digest(image)) == 64


def test_the_digest_tells_images_apart() -> None:
    """Equal bytes of another size, mode or palette, and other pixels, have other digests."""
    zeros = bytes(12)
    palette = Image.frombytes("P", (12, 1), zeros)
    palette.putpalette([1, 2, 3])
    images = [
        Image.frombytes("RGB", (4, 1), zeros),
        Image.frombytes("RGB", (1, 4), zeros),
        Image.frombytes("RGB", (2, 2), zeros),
        Image.frombytes("L", (12, 1), zeros),
        Image.frombytes("CMYK", (3, 1), zeros),
        Image.frombytes("P", (12, 1), zeros),
        palette,
        Image.frombytes("RGB", (4, 1), zeros[:-1] + b"\1"),
    ]
    assert len({content_digest(image) for image in images}) == len(images)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_salts_separate_digests(first: list[str], second: list[str]) -> None:
    """Two lists of salts give the same digest only if they are equal, however they would join."""
    image = Image.new("RGB", (1, 1))
    same = content_digest(image, *first) == content_digest(image, *second)
    assert same == (first == second)


@given(
    st.lists(st.text(max_size=4), max_size=3), st.binary(max_size=20),
    st.lists(st.text(max_size=4), max_size=3), st.binary(max_size=20),
)  # fmt: skip
def test_a_file_is_named_by_its_bytes(
    salts: list[str], data: bytes, other_salts: list[str], other_data: bytes
) -> None:
    """Other bytes and other salts give other names."""
    same = file_digest(data, *salts) == file_digest(other_data, *other_salts)
    assert same == ((salts, data) == (other_salts, other_data))


def test_no_file_passes_for_one_with_salts() -> None:
    """Not even a file that begins with the bytes of hashed salts: tenants choose their files."""
    salt = "tenant"
    hashed = len(salt).to_bytes(8, "big") + salt.encode()
    for forged in (hashed + b"file", (1).to_bytes(8, "big") + hashed + b"file"):
        assert file_digest(forged) != file_digest(b"file", salt)
