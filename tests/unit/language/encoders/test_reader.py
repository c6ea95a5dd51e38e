"""Recognition of images, and the work that it saves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.decoding import PlainDecoder
from tests.support.pictures import noise, png
from tests.support.tiny import llava
from ts_stateful.language.encoders.loader import MediaReader
from ts_stateful.media.load import MediaFile
from ts_stateful.protocol.errors import MediaInvalid
from ts_stateful.sessions.shared import SharedCache


@dataclass(frozen=True)
class Watched(MediaFile):
    """A file that records when it is decoded."""

    decoded: list[str]

    def decode_image(self) -> Any:
        self.decoded.append(self.field)
        return super().decode_image()


class Reading:
    """A reader, and the work that it did."""

    def __init__(self) -> None:
        vision = llava().encoder
        assert vision is not None
        self.shared: SharedCache[Any] = SharedCache(10**6)
        self.reader = MediaReader(vision, self.shared)
        self.decoded: list[str] = []

    def read(self, data: bytes, tenant: object = None) -> Any:
        """Read the image in a file."""
        file = Watched(data, PlainDecoder(), "images[0]", self.decoded)
        return self.reader.read(file, tenant)


@pytest.fixture
def reading() -> Reading:
    """Return a reader that has read nothing yet."""
    return Reading()


def test_the_same_file_again_is_not_decoded(reading: Reading) -> None:
    """It is the same image, and that counts as a use."""
    first = reading.read(png(noise(1)))
    assert reading.read(png(noise(1))) is first
    assert len(reading.decoded) == 1
    assert reading.shared.num_found == 1


def test_another_file_of_the_same_pixels_is_the_same_image(reading: Reading) -> None:
    """It is decoded to be recognized; from then on the file is known too."""
    first = reading.read(png(noise(1)))
    other = png(noise(1)) + b"trailing bytes"
    assert reading.read(other) is first
    assert reading.read(other) is first
    assert len(reading.decoded) == 2


def test_the_file_of_a_forgotten_image_is_decoded_again(reading: Reading) -> None:
    """Files are remembered as long as their images are."""
    reading.read(png(noise(1)))
    assert reading.read(png(noise(1))).key
    assert len(reading.decoded) == 2
    assert reading.shared.num_found == 0


def test_tenants_do_not_recognize_each_others_files(reading: Reading) -> None:
    """Neither the time nor the object reveals other tenants' images."""
    tenants = (None, "a", "b", 1, "1", "", "None", True)
    images = [reading.read(png(noise(1)), tenant) for tenant in tenants]
    assert len(set(images)) == len({image.key for image in images}) == len(tenants)
    assert len(reading.decoded) == len(tenants)
    assert [reading.read(png(noise(1)), tenant) for tenant in tenants] == images


def test_a_damaged_file_is_refused_each_time(reading: Reading) -> None:
    """Nothing about it is kept."""
    for _ in range(2):
        with pytest.raises(MediaInvalid):
            reading.read(b"no image")
    assert len(reading.decoded) == 2


def test_many_threads_get_one_image(reading: Reading) -> None:
    """Threads that bring a new image at the same time get the same object."""
    data = png(noise(1))
    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(reading.read, [data] * 32))
    assert len(set(images)) == 1
    assert reading.shared.num_found == 31
