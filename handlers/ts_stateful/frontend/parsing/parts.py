"""TorchServe's reading of requests in the worker, with a bound on the parts of each.

TorchServe reads every part with six system calls and keeps it, before it calls the handler. A form of 2 MB can have a million.
"""

from __future__ import annotations

import socket
import struct
from functools import partial
from itertools import islice
from typing import Any

from ts.protocol import otf_message_handler as torchserve

__all__ = ["bound_parts", "read_request"]

_WINDOW_BYTES = 1 << 18
_length_at = struct.Struct("!i").unpack_from
_END = -1  # in the place of a length
_FIELDS = 3  # of a part: name, content type, value; each after its length


def bound_parts(max_parts: int) -> None:
    """Let this worker read requests by `read_request`."""
    torchserve._retrieve_request = partial(read_request, max_parts=max_parts)


def read_request(connection: socket.socket, max_parts: int) -> dict[str, Any] | None:
    """Read the next request of a batch as TorchServe does; return None at the end of the batch.

    Of a request with more than `max_parts` parts, return one more than that, without their content. Raises SystemExit if the
    frontend has disconnected.
    """
    length = torchserve._retrieve_int(connection)
    if length == _END:
        return None
    request_id = torchserve._retrieve_buffer(connection, length)
    headers = list(iter(partial(torchserve._retrieve_reqest_header, connection), None))
    parts = list(
        islice(iter(partial(torchserve._retrieve_input_data, connection), None), max_parts + 1)
    )
    if len(parts) > max_parts:
        _skip_parts(connection)
        # Parts of the same name would count as one.
        parts = [{"name": str(i), "contentType": "", "value": b""} for i in range(max_parts + 1)]
    return {"requestId": request_id, "headers": headers, "parameters": parts}


def _skip_parts(connection: socket.socket) -> None:
    """Read the remaining parts of a request, and its end."""
    while True:
        window = connection.recv(_WINDOW_BYTES, socket.MSG_PEEK)
        size, is_last = _whole_parts(window)
        if size:
            torchserve._retrieve_buffer(connection, size)
        elif torchserve._retrieve_input_data(connection) is None:  # longer than the window
            return
        if is_last:
            return


def _whole_parts(window: bytes) -> tuple[int, bool]:
    """Return the bytes of the whole parts at the start of a window, and True if they end with the last one of the request."""
    whole = at = 0
    try:
        while True:
            for _ in range(_FIELDS):
                (length,) = _length_at(window, at)
                at += 4 + length
                if length == _END:
                    return whole + 4, True
            if at > len(window):
                return whole, False
            whole = at
    except struct.error:
        return whole, False
