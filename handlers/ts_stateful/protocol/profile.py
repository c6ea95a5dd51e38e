"""TorchServe's ways of batching, one of which carries the requests."""

from __future__ import annotations

import enum

__all__ = ["Profile"]


class Profile(enum.Enum):
    """One of TorchServe's ways of batching."""

    CONTINUOUS = "continuous"
    SEQUENCE = "sequence"
    ASYNC = "async"
