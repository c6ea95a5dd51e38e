"""The models of one server, and the names by which clients find them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.config.schema import Config, load_config
from ts_stateful.protocol.errors import ModelNotFound


class Front:
    """A model that answers."""

    def __init__(self, name: str, *adapters: str) -> None:
        self.name, self.version = name, "1.0"
        self.config: Config = load_config(
            {"handler": {"adapters": dict.fromkeys(adapters, "folder")}}
        )

    async def has_started(self, timeout_s: float) -> bool:
        return True


def test_an_adapter_leads_to_its_model() -> None:
    """A model's own name comes first, whatever adapters others have."""
    models = Models(cast("list[ModelFront]", [Front("a", "red", "b"), Front("b", "blue")]))
    found = {name: asyncio.run(models.find_named(name)).name for name in ("a", "b", "red", "blue")}
    assert found == {"a": "a", "b": "b", "red": "a", "blue": "b"}
    with pytest.raises(ModelNotFound):
        asyncio.run(models.find_named("green"))
    with pytest.raises(ModelNotFound):
        models.get("red")
