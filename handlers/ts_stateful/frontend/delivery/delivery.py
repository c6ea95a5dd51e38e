"""The return of answers to TorchServe, one class per profile."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Batch", "Delivery"]

Batch = Sequence[Mapping[str, Any]]


class Delivery(Protocol):
    """The answers to TorchServe's batches."""

    def handle(self, data: Batch, context: Any) -> list[bytes] | Awaitable[list[bytes]]:
        """Return one body per row, as TorchServe's `handle` does."""
