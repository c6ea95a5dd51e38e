"""TorchServe's reading of requests in the worker, in blocks and with a bound on the parts of each.

TorchServe reads every part with six system calls and keeps it, before it calls the handler. A form of 2 MB can have a million.
In the continuous profile it sends each request in flight again in every batch.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
from typing import Any

from ts.protocol import otf_message_handler as torchserve

from ts_stateful.frontend.parsing.limits import own_name
from ts_stateful.process.blocks import BlockReader, ConnectionEnded

__all__ = ["BatchReader", "bound_parts"]

_LENGTH = struct.Struct("!i")
_END = -1  # in the place of a length


def bound_parts(max_parts: int) -> None:
    """Let this worker read batches by a `BatchReader`, and with it everything else that TorchServe sends."""
    reader = BatchReader(max_parts)
    torchserve._retrieve_buffer = reader.take
    torchserve._retrieve_inference_msg = reader.read_batch
    logging.getLogger().addFilter(_is_worth_a_line)


class BatchReader:
    """The reader of a worker's one connection, in the place of TorchServe's functions.

    All methods raise SystemExit if the frontend has disconnected.
    """

    def __init__(self, max_parts: int) -> None:
        self._max_parts = max_parts
        self._blocks: BlockReader | None = None

    def take(self, connection: socket.socket, length: int) -> bytes | bytearray:
        """Read `length` bytes."""
        if self._blocks is None:
            self._blocks = BlockReader(connection)
        try:
            return self._blocks.take(length)
        except ConnectionEnded:
            sys.exit(0)

    def read_batch(self, connection: socket.socket) -> list[dict[str, Any]]:
        """Read a batch of requests as TorchServe does, but all values as bytes.

        Of a request with more than `max_parts` parts, return one more than that, without their content.
        """
        if self._blocks is None:
            self._blocks = BlockReader(connection)
        try:
            return self._batch(self._blocks)
        except ConnectionEnded:
            sys.exit(0)

    def _batch(self, blocks: BlockReader) -> list[dict[str, Any]]:
        batch = []
        while (length := _length(blocks)) != _END:
            name, headers = blocks.take(length), _headers(blocks)
            parts = self._parts(blocks)
            batch.append({"requestId": name, "headers": headers, "parameters": parts})
        return batch

    def _parts(self, blocks: BlockReader) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        while (length := _length(blocks)) != _END:
            if len(parts) == self._max_parts:
                _skip_parts(blocks, length)
                # Parts of the same name would count as one.
                return [_part(str(number)) for number in range(self._max_parts + 1)]
            name = blocks.take(length).decode("utf-8")
            kind = _field(blocks).decode("utf-8")
            if kind:  # a parameter of the URL has none
                name = own_name(name, [part["name"] for part in parts])
            parts.append(_part(name, kind, _field(blocks)))
        return parts


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return record.msg != "Backend received inference at: %d"  # once for each batch


def _headers(blocks: BlockReader) -> list[dict[str, bytes | bytearray]]:
    headers = []
    while (length := _length(blocks)) != _END:
        name = blocks.take(length)
        headers.append({"name": name, "value": _field(blocks)})
    return headers


def _skip_parts(blocks: BlockReader, length: int) -> None:
    """Read the remaining parts of a request, after the `length` of the name of the first, and its end."""
    while length != _END:
        blocks.skip(length)
        blocks.skip(_length(blocks))  # of the content type
        blocks.skip(_length(blocks))  # of the value
        length = _length(blocks)


def _part(name: str, kind: str = "", value: bytes | bytearray = b"") -> dict[str, Any]:
    return {"name": name, "contentType": kind, "value": value}


def _field(blocks: BlockReader) -> bytes | bytearray:
    return blocks.take(_length(blocks))


def _length(blocks: BlockReader) -> int:
    length: int = _LENGTH.unpack(blocks.take(_LENGTH.size))[0]
    return length
