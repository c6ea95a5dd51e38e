"""Helm, and the objects that it makes."""

from __future__ import annotations

import pytest

from tests.support.helm import EXAMPLES, NO_HELM, Objects, helm_binaries, render


@pytest.fixture(scope="session")
def helm() -> str:
    """Find the newest Helm."""
    found = helm_binaries()
    if not found:
        pytest.skip(NO_HELM)
    return found[0]


@pytest.fixture(params=EXAMPLES)
def objects(request: pytest.FixtureRequest, helm: str) -> Objects:
    """Return the objects of each example."""
    return render(helm, request.param)
