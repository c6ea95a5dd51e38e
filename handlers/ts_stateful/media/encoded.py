"""Images and clips as base64 text, in the request itself or in a `data:` URL; their size is checked before they are decoded."""

from __future__ import annotations

import base64
import re

from ts_stateful.protocol.errors import MediaInvalid, MediaTooLarge

__all__ = ["check_size", "decode_base64", "decode_data_url"]

_WHITESPACE = dict.fromkeys(map(ord, " \t\r\n"))
_HEADER_MAX_CHARS = 256
_TYPE = re.compile(
    r"data:(?:image|audio)/[a-z0-9.+-]+(;[a-z0-9.+-]+=[a-z0-9.+-]*)*;base64",
    re.IGNORECASE | re.ASCII,
)


def decode_base64(text: str, max_bytes: int, field: str) -> bytes:
    """Decode base64 (RFC 4648, section 4); whitespace is skipped.

    Raises:
        MediaTooLarge: there are more than `max_bytes` bytes.
        MediaInvalid: `text` is not base64, or empty.
    """
    return _decode_strictly(text.translate(_WHITESPACE), max_bytes, field)


def decode_data_url(url: str, max_bytes: int, field: str) -> bytes:
    """Decode a `data:image/...;base64,...` or `data:audio/...` URL (RFC 2397) without percent-encoding.

    Raises:
        MediaTooLarge: there are more than `max_bytes` bytes.
        MediaInvalid: the type is neither image nor audio, the encoding is not base64, or the base64 is malformed.
    """
    comma = url.find(",", 0, _HEADER_MAX_CHARS)
    if comma < 0 or _TYPE.fullmatch(url, 0, comma) is None:
        raise MediaInvalid(
            "a data URL must begin with data:image/<type>;base64, or data:audio/<type>;base64,",
            field=field,
        )
    return _decode_strictly(url[comma + 1 :], max_bytes, field)


def check_size(num_bytes: int, max_bytes: int, field: str) -> None:
    """Raise MediaTooLarge if `num_bytes` is more than `max_bytes`."""
    if num_bytes > max_bytes:
        raise MediaTooLarge(
            f"the file has more than {max_bytes} bytes; send a smaller one", field=field
        )


def _decode_strictly(text: str, max_bytes: int, field: str) -> bytes:
    check_size(len(text) * 3 // 4 - text.count("=", -2), max_bytes, field)
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:  # wrong character, wrong padding, not ASCII
        raise MediaInvalid("the file is not valid base64", field=field) from None
    if not data:
        raise MediaInvalid("the file is empty", field=field)
    return data
