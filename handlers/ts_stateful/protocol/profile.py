"""TorchServe's ways of batching."""

from __future__ import annotations

import enum

__all__ = ["Profile"]


class Profile(enum.Enum):
    """The way of batching that carries the requests."""

    CONTINUOUS = "continuous"
    SEQUENCE = "sequence"
    ASYNC = "async"
