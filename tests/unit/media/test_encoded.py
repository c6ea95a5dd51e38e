"""Base64 text and `data:` URLs."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.media.encoded import decode_base64, decode_data_url
from ts_stateful.protocol.errors import MediaError, MediaInvalid, MediaTooLarge

FIELD = "images[0].base64"


@given(st.binary(min_size=1, max_size=200))
def test_base64_gives_the_bytes_back(data: bytes) -> None:
    """Bytes in base64 are decoded to the same bytes, in a field and in a data URL."""
    text = base64.b64encode(data).decode()
    assert decode_base64(text, 200, FIELD) == data
    assert decode_data_url(f"data:image/png;base64,{text}", 200, FIELD) == data


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_text_is_decoded_or_refused_as_media(text: str, header: str) -> None:
    """No text makes anything but a media error."""
    with contextlib.suppress(MediaError):
        decode_base64(text, 20, FIELD)
    with contextlib.suppress(MediaError):
        decode_data_url(f"data:{header},{text}", 20, FIELD)


def test_whitespace_in_base64_is_passed_over() -> None:
    """Base64 wrapped into lines, as mail and command-line tools make it, is taken."""
    assert decode_base64(" aGVs\r\nbG8\t=\n", 5, FIELD) == b"hello"


@pytest.mark.parametrize(
    "text",
    [
        "aGVsbG8",
        "aGVsbG8==",
        "aGVsbG8=x",
        "aGVs=bG8",
        "a",
        "=",
        "====",
        "aGV_",
        "aGV-",
        "aGVs%3D",
        "!!!!",
        "",
        " \n",
        "aGVs\u00a0bG8=",
        "a\u0308GVs",
        "data:image/png;base64,aGVsbG8=",
    ],
)
def test_malformed_base64_is_refused(text: str) -> None:
    """Wrong padding, another alphabet, foreign characters and no bytes at all are invalid."""
    with pytest.raises(MediaInvalid) as caught:
        decode_base64(text, 1000, FIELD)
    assert caught.value.field == FIELD


@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_the_limit_counts_decoded_bytes(length: int) -> None:
    """As many bytes as the limit are taken, one more is too large, whatever the padding."""
    text = base64.b64encode(b"x" * length).decode()
    assert len(decode_base64(text, length, FIELD)) == length
    with pytest.raises(MediaTooLarge):
        decode_base64(text, length - 1, FIELD)


def test_the_limit_is_checked_before_decoding() -> None:
    """Text that is too long is refused as too large even if it is not base64."""
    with pytest.raises(MediaTooLarge):
        decode_base64("!" * 100, 10, FIELD)


@pytest.mark.parametrize(
    "header", ["image/png;base64", "IMAGE/PNG;BASE64", "image/svg+xml;charset=utf-8;base64"]
)
def test_data_urls_of_images_are_taken(header: str) -> None:
    """Any image type will do, in any case and with parameters: the content decides later."""
    assert decode_data_url(f"data:{header},aGVsbG8=", 5, FIELD) == b"hello"


@pytest.mark.parametrize(
    "url",
    [
        "data:",
        "data:,",
        "data:image/png;base64",
        "data:image/png,hello",
        "data:text/html;base64,aGVsbG8=",
        "data:;base64,aGVsbG8=",
        "data:application/octet-stream;base64,aGVsbG8=",
        "data:image/;base64,aGVsbG8=",
        "data: image/png;base64,aGVsbG8=",
        "data:image/png;base64;base64x,aGVsbG8=",
        "data:image/png;base64,aGVsbG8",
        "data:image/png;base64,aGVs bG8=",
        "data:image/png;base64,aGVsbG8%3D",
        "data:image/png;base64,",
        "data:image/png" + ";a=b" * 100 + ";base64,aGVsbG8=",
    ],
)
def test_other_data_urls_are_refused(url: str) -> None:
    """A data URL of another type, another encoding or with malformed base64 is invalid."""
    with pytest.raises(MediaInvalid) as caught:
        decode_data_url(url, 1000, FIELD)
    assert caught.value.field == FIELD
