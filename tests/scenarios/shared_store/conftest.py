"""Two engines of one store."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness
from tests.support.store_engines import FailingStore
from tests.support.tiny import llava
from ts_stateful.language.network.load import Model


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees."""
    return llava()


@pytest.fixture
def store() -> FailingStore:
    """A store that both engines use."""
    return FailingStore()


@pytest.fixture
def first(model: Model, store: FailingStore) -> Harness:
    """The engine that a session is opened at."""
    return Harness(model, store=store)


@pytest.fixture
def second(model: Model, store: FailingStore) -> Harness:
    """Another engine with the same model and store."""
    return Harness(model, store=store)
