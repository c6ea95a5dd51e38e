"""Event streams: frames that AWS's own decoder reads."""

from __future__ import annotations

import json
import struct
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer, EventStreamMessage
from hypothesis import given
from hypothesis import strategies as st

from deploy.sagemaker.local.eventstream import payload_part, stream_error


def _decoded(data: bytes, cut: int) -> list[EventStreamMessage]:
    """Decode a stream that arrives in pieces of `cut` bytes."""
    buffer = EventStreamBuffer()
    messages = []
    for start in range(0, len(data), cut):
        buffer.add_data(data[start : start + cut])
        messages += list(buffer)
    return messages


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 700))
def test_parts_come_out_as_they_went_in(parts: list[bytes], cut: int) -> None:
    """Payloads of any bytes pass through the decoder unchanged and in order, wherever the stream is cut."""
    messages = _decoded(b"".join(map(payload_part, parts)), cut)
    assert [message.payload for message in messages] == parts
    for message in messages:
        assert message.headers == {
            ":message-type": "event",
            ":event-type": "PayloadPart",
            ":content-type": "application/octet-stream",
        }


@pytest.mark.parametrize("kind", ["ModelStreamError", "InternalStreamFailure"])
def test_an_error_is_an_exception_of_its_kind(kind: str) -> None:
    """A failure is a frame that the decoder takes for an error, with its fields as JSON."""
    fields = {"ErrorCode": "StreamBroken", "Message": "gone \N{SNOWMAN}"}
    (message,) = _decoded(stream_error(kind, fields), 1_000)
    assert message.headers[":message-type"] == "exception"
    assert message.headers[":exception-type"] == kind
    assert json.loads(message.payload) == fields
    assert message.to_response_dict()["status_code"] == 400


def test_a_frame_is_laid_out_as_the_format_says() -> None:
    """Lengths, checksums and a header are where the format's description puts them."""
    frame = payload_part(b"abc")
    total, head, prelude_crc = struct.unpack("!III", frame[:12])
    assert total == len(frame)
    assert prelude_crc == crc32(frame[:8])
    assert frame[12:].startswith(b"\x0d:message-type\x07\x00\x05event")
    assert frame[12 + head : -4] == b"abc"
    assert struct.unpack("!I", frame[-4:]) == (crc32(frame[:-4]),)
