"""Models that need a later release of transformers than the first one that is supported, 5.20."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version

__all__ = ["since"]


def since(release: str, reason: str) -> None:
    """Skip the test if transformers is older than a release."""
    if Version(transformers.__version__) < Version(release):
        pytest.skip(f"transformers {release} is needed: {reason}")
