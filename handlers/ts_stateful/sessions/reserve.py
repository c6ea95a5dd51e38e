"""Tensors that belong to no session in the table, and leave the device first."""

from __future__ import annotations

__all__ = ["Reserve"]


class Reserve:
    """The owner of such tensors; this one has none."""

    @property
    def num_bytes(self) -> int:
        """Bytes on the device; all of them can be freed."""
        return 0

    def evict(self, num_bytes: int | None = None) -> int:
        """Drop tensors until `num_bytes` are free, or all; return the bytes that this freed."""
        return 0
