"""The encoding of AWS's event streams, outbound: `application/vnd.amazon.eventstream`.

A frame is

    total length u32 | headers length u32 | CRC32 of these u32 | headers | payload | CRC32 of all of it u32

big-endian, and a header is `name length u8 | name | 7 | value length u16 | value` (7: a string). See
https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html#streaming-event-stream.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from zlib import crc32

__all__ = ["MEDIA_TYPE", "payload_part", "stream_error"]

MEDIA_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7
_PRELUDE_BYTES = 12
_CRC_BYTES = 4


def payload_part(data: bytes) -> bytes:
    """Encode a part of the model's answer."""
    headers = {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    return _frame(headers, data)


def stream_error(kind: str, fields: Mapping[str, str]) -> bytes:
    """Encode the failure that ends a stream: a `ModelStreamError` or an `InternalStreamFailure`."""
    headers = {
        ":message-type": "exception",
        ":exception-type": kind,
        ":content-type": "application/json",
    }
    return _frame(headers, json.dumps(dict(fields)).encode())


def _frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    head = b"".join(_header(name, value) for name, value in headers.items())
    num_bytes = _PRELUDE_BYTES + len(head) + len(payload) + _CRC_BYTES
    prelude = struct.pack("!II", num_bytes, len(head))
    frame = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return frame + struct.pack("!I", crc32(frame))


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return struct.pack("!B", len(key)) + key + struct.pack("!BH", _STRING, len(text)) + text
