"""Models that some of the supported releases of transformers cannot compute. The first one is 5.20."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version

__all__ = ["broken_in", "since"]


def since(release: str, reason: str) -> None:
    """Skip the test if transformers is older than a release."""
    if Version(transformers.__version__) < Version(release):
        pytest.skip(f"transformers {release} is needed: {reason}")


def broken_in(release: str, reason: str) -> None:
    """Skip the test if transformers is this release."""
    if Version(transformers.__version__) == Version(release):
        pytest.skip(f"another transformers than {release} is needed: {reason}")
