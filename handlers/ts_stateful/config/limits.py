"""The settings of `handler.limits`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ts_stateful.config.ranges import Count

__all__ = ["LimitsConfig"]


class LimitsConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`handler.limits`: bounds of requests, checked before a request is parsed."""

    max_json_bytes: Count = 1_000_000
    """Bytes of the JSON of a request beside the data of its images, or of a raw input of format `text`."""
    max_json_values: Count = 100_000
    """Values in this JSON, objects and arrays included, or numbers in this text."""
    max_json_depth: Annotated[int, Meta(ge=8, le=128)] = 64
    """Levels of objects and arrays in each other."""
    max_in_flight_bytes: Count = 200_000_000
    """Bytes of all requests in flight in a worker. A request that is alone there may have more."""
