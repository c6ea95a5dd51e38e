"""The models whose sessions are forked and rewound."""

from __future__ import annotations

import pytest

from tests.support.branching import MAKERS
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model


@pytest.fixture(scope="module", params=sorted(MAKERS))
def model(request: pytest.FixtureRequest) -> Model:
    """Every architecture, and a chat template that rewrites history."""
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def plain() -> Model:
    """One model where architectures make no difference."""
    return llama()
