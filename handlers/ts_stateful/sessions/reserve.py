"""Tensors that belong to no session in the table, and leave the device first."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NoReserve", "Reserve"]


class Reserve(Protocol):
    """The interface of such tensors' owner."""

    @property
    def num_bytes(self) -> int:
        """Bytes on the device; all of them can be freed."""

    def evict(self, num_bytes: int | None = None) -> int:
        """Drop tensors until `num_bytes` are free, or all; return the bytes that this freed."""


class NoReserve:
    """Nothing."""

    num_bytes = 0

    def evict(self, num_bytes: int | None = None) -> int:
        """See `Reserve`."""
        return 0
