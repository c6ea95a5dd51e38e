"""The ways in which a front carries requests."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["TORCHSERVE_PROFILES", "Profile"]


class Profile(enum.Enum):
    """The front, or of TorchServe the way of batching, that carries the requests."""

    CONTINUOUS = "continuous"
    SEQUENCE = "sequence"
    ASYNC = "async"
    ASGI = "asgi"  # the front without TorchServe

    @property
    def pushes_to_grpc(self) -> bool:
        """Return True if a gRPC stream of one request gets a reply's pieces as they come."""
        return self in (Profile.ASYNC, Profile.ASGI)


TORCHSERVE_PROFILES: Final = (Profile.CONTINUOUS, Profile.SEQUENCE, Profile.ASYNC)
"""The profiles that a `model-config.yaml` selects."""
