"""The models of one server, and the names by which clients find them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.config.schema import Config, load_config
from ts_stateful.frontend.metrics.prometheus import FrontMetrics
from ts_stateful.process.worker.supervisor import EngineDied
from ts_stateful.protocol.errors import ModelNotFound, ServerBusy


class Front:
    """A model that answers."""

    def __init__(self, name: str, *adapters: str) -> None:
        self.name, self.version = name, "1.0"
        self.config: Config = load_config(
            {"handler": {"adapters": dict.fromkeys(adapters, "folder")}}
        )

    async def has_started(self, timeout_s: float) -> bool:
        return True


class Loading(Front):
    """A model that loads until it is closed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._closed = asyncio.Event()

    async def start(self) -> None:
        await self._closed.wait()
        raise EngineDied("the worker is stopping")

    def close(self) -> None:
        self._closed.set()


class Broken(Loading):
    """A model that does not load."""

    async def start(self) -> None:
        raise EngineDied(self.name)


def test_a_server_that_is_to_stop_waits_for_no_model() -> None:
    """Loading may take minutes; the engines end with it."""

    async def run() -> bool:
        stop = asyncio.Event()
        models = Models(cast("list[ModelFront]", [Loading("a"), Loading("b")]))
        started = asyncio.ensure_future(models.start(stop))
        await asyncio.sleep(0)
        stop.set()
        return await asyncio.wait_for(started, 20.0)

    assert not asyncio.run(run())


def test_a_model_that_does_not_load_is_the_reason() -> None:
    """Of several the first one; the others have ended."""

    async def run() -> None:
        await Models(cast("list[ModelFront]", [Broken("a"), Broken("b")])).start(asyncio.Event())

    with pytest.raises(EngineDied, match="a"):
        asyncio.run(run())


def test_an_adapter_leads_to_its_model() -> None:
    """A model's own name comes first, whatever adapters others have."""
    models = Models(cast("list[ModelFront]", [Front("a", "red", "b"), Front("b", "blue")]))
    found = {name: asyncio.run(models.find_named(name)).name for name in ("a", "b", "red", "blue")}
    assert found == {"a": "a", "b": "b", "red": "a", "blue": "b"}
    with pytest.raises(ModelNotFound):
        asyncio.run(models.find_named("green"))
    with pytest.raises(ModelNotFound):
        models.get("red")


def test_refusals_are_counted_by_models_that_exist() -> None:
    """However many names clients invent, all missing models are one series."""
    models = Models(cast("list[ModelFront]", [Front("a"), Front("b")]))
    models.count_refusal(ServerBusy("before there are metrics"))
    registry = CollectorRegistry()
    models.metrics = FrontMetrics(registry)
    models.count_refusal(ServerBusy("x"))
    models.count_refusal(ServerBusy("x"), "b")
    for name in ("c", "d", "e"):
        with pytest.raises(ModelNotFound) as missing:
            models.get(name)
        models.count_refusal(missing.value, name)
    with pytest.raises(ModelNotFound) as missing:
        models.get("b", "2.0")
    models.count_refusal(missing.value, "b")
    (errors,) = (one for one in registry.collect() if one.name == "ts_stateful_errors")
    assert {
        (sample.labels["model"], sample.labels["code"]): sample.value
        for sample in errors.samples
        if sample.name.endswith("_total")
    } == {
        ("", "model_not_found"): 3,
        ("a", "server_busy"): 1,
        ("b", "server_busy"): 1,
        ("b", "model_not_found"): 1,
    }
