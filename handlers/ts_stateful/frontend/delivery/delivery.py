"""How answers get back to TorchServe; one class per profile does it.

Owns the seam between the handler and what differs between TorchServe's ways of batching.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Batch", "Delivery"]

Batch = Sequence[Mapping[str, Any]]


class Delivery(Protocol):
    """Answers the rows of TorchServe's batches."""

    def handle(self, data: Batch, context: Any) -> list[bytes] | Awaitable[list[bytes]]:
        """One body per row, as TorchServe's `handle` returns them."""
