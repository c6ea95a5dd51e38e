"""An engine with one session."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model


@pytest.fixture(scope="module")
def model() -> Model:
    """One model for all tests here: they look at requests, not at tokens."""
    return llama()


@pytest.fixture
def harness(model: Model) -> Harness:
    """An engine with a session `s`."""
    harness = Harness(model)
    harness.open("s")
    return harness
