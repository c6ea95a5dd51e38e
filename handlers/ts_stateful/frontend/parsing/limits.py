"""Bounds of a request's bytes, parts, JSON values and nesting, checked before anything is parsed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Protocol

import numpy as np

from ts_stateful.config.limits import LimitsConfig
from ts_stateful.config.schema import MediaConfig
from ts_stateful.protocol.errors import ContextTooLong, InvalidRequest, ServerBusy

__all__ = ["BodyLimits", "HeldBytes", "Parts", "num_bytes", "own_name"]

Parts = Mapping[str, bytes | bytearray]
"""The parts of a request by name: of a form, a gRPC message or the URL, or the whole body."""

_MEDIA = MediaConfig()
_RETRY_AFTER_S = 1.0
_OTHER_PARTS = 8  # the JSON, and what TorchServe's own clients send beside it
# The content of a string after one of these keys, up to its first quote, which may be escaped. If a match begins within another
# string, at an escaped quote, the next quote ends that string, so that the content is one of a string again.
_IMAGE_DATA = re.compile(
    rb'"(?:(?:base64|data)"\s*:\s*"|(?:url|path)"\s*:\s*"(?=data:))([^"]{1024,})"'
)
_BACKSLASH = ord("\\")
_ALL = bytes(range(256))
_NOT_BRACKETS = bytes(set(_ALL) - set(b"[]{}"))
_NOT_SEPARATORS = bytes(set(_ALL) - set(b", \t\n\r\v\f"))
_STEP_OF = np.zeros(256, np.int8)  # the change of the depth at a byte
_STEP_OF[list(b"[{")] = 1
_STEP_OF[list(b"]}")] = -1


class HeldBytes(Protocol):
    """The holder of the requests in flight."""

    @property
    def bytes_in_flight(self) -> int:
        """Return the bytes of all requests that are not answered to the end."""

    def bytes_of(self, principal: str | None) -> int:
        """Return those of one principal; None stands for clients without one."""


class BodyLimits:
    """The limits of one worker's requests, with up to `max_images` images in each.

    A check makes no Python object of a value. An empty object or array counts as two values.
    """

    def __init__(
        self,
        settings: LimitsConfig | None = None,
        max_images: int = _MEDIA.max_images,
        held: HeldBytes | None = None,
    ) -> None:
        self._settings = settings or LimitsConfig()
        self._max_images = max_images
        self._held = held

    @property
    def max_parts(self) -> int:
        """Return the limit of the parts of a form, inputs of a gRPC message, or parameters of a URL."""
        return self._max_images + _OTHER_PARTS

    def check_request(self, data: Parts) -> None:
        """Check the size of a request as a whole: its bytes beside those in flight, and the number of its parts.

        Raises:
            ServerBusy: there are too many bytes in flight.
            InvalidRequest: there are too many parts.
        """
        held = 0 if self._held is None else self._held.bytes_in_flight
        limit = self._settings.max_in_flight_bytes
        if held and held + num_bytes(data) > limit:
            raise ServerBusy(
                f"the requests in flight have {held} bytes, and with this one more than {limit}"
                " (handler.limits.maxInFlightBytes); try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        if len(data) > self.max_parts:
            raise InvalidRequest(
                f"the request has more than {self.max_parts} parts or parameters"
                f" (handler.media.maxImages and {_OTHER_PARTS} more); send fewer"
            )

    def check_json(self, text: bytes | bytearray) -> None:
        """Check the JSON of a request.

        What is not JSON may pass: parsing it ends at the first error, and what comes before that is within the limits.

        Raises:
            ContextTooLong: it has too many bytes.
            InvalidRequest: it has too many values, or is nested too deeply.
        """
        limit = self._settings.max_json_bytes
        if len(text) > limit and text.count(b'"') <= limit:
            text = self._without_images(text)
        self._check_size(len(text))
        self._check_values(text)

    def check_text(self, text: bytes, field: str) -> None:
        """Check numbers that are separated by commas or whitespace.

        Raises:
            ContextTooLong: there are too many bytes.
            InvalidRequest: there are too many numbers.
        """
        self._check_size(len(text), field)
        self._check_count(1 + len(text.translate(None, _NOT_SEPARATORS)), field)

    def _without_images(self, text: bytes | bytearray) -> bytes:
        kept, end = [], 0
        found = _IMAGE_DATA.finditer(text)
        whole = (match for match in found if text[match.end(1) - 1] != _BACKSLASH)
        for match in islice(whole, self._max_images):
            kept.append(text[end : match.start(1)])
            end = match.end(1)
        return b"".join((*kept, text[end:]))

    def _check_size(self, size: int, field: str | None = None) -> None:
        limit = self._settings.max_json_bytes
        if size > limit:
            aside = (
                f" beside the data of up to {self._max_images} images" if self._max_images else ""
            )
            raise ContextTooLong(
                f"the request has {size} bytes{aside}, and the limit is {limit}"
                " (handler.limits.maxJsonBytes); send less at a time",
                field=field,
            )

    def _check_values(self, text: bytes | bytearray) -> None:
        limit = self._settings.max_json_depth
        opened = text.count(b"[") + text.count(b"{")
        if opened <= limit and opened + text.count(b",") < self._settings.max_json_values:
            return  # even if all of them are outside of strings
        plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
        self._check_count(plain.count(b'"') // 4)  # a value has four at most, with its key
        structure = b"".join(plain.split(b'"')[::2])  # what is outside of strings
        steps = _STEP_OF[np.frombuffer(structure.translate(None, _NOT_BRACKETS), np.uint8)]
        if steps.cumsum(dtype=np.int32).max(initial=0) > limit:
            raise InvalidRequest(
                f"the JSON is nested more than {limit} levels deep (handler.limits.maxJsonDepth); send it flat"
            )
        self._check_count(1 + structure.count(b",") + int((steps > 0).sum()))

    def _check_count(self, count: int, field: str | None = None) -> None:
        limit = self._settings.max_json_values
        if count > limit:
            raise InvalidRequest(
                f"the request has more than {limit} values (handler.limits.maxJsonValues); send fewer at a time",
                field=field,
            )


def num_bytes(data: Parts) -> int:
    """Return the bytes of a request's parts."""
    return sum(map(len, data.values()))


def own_name(name: str, names: Collection[str]) -> str:
    """Return a name of its own for the next part of a form: a browser sends all files of a field under one name."""
    while name in names:
        name = f"{name} ({len(names)})"
    return name
