"""A language model that is loaded as its process loads it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.harness import CONFIG
from tests.support.tiny import llama
from tests.support.tiny.small import save
from ts_stateful.config.schema import load_config
from ts_stateful.engine.services import Placement, Services, WorkQueue
from ts_stateful.language.engine import load_engine
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Hello


class Events(list[Event]):
    """The events of an engine."""

    def emit(self, event: Event) -> None:
        """Keep an event."""
        self.append(event)


def test_hello_has_the_name_that_the_server_gives_the_model(tmp_path: Path) -> None:
    """As its URLs and OpenAI's list have it. In most archives its folder is called `model`."""
    save(llama(), tmp_path / "model")
    config = load_config({**CONFIG, "handler": {**CONFIG["handler"], "model": "model"}})
    events = Events()
    placement = Placement(str(tmp_path), "chat", "cpu")
    engine = load_engine(config, placement, Services(events, WorkQueue()))
    engine.submit(Submit("r", Hello()))
    assert json.loads(events[-1].body)["model"] == "chat"
