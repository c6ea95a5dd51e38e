"""A model at the front without TorchServe, whose engines a script plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from starlette.testclient import TestClient

from tests.support.fake_dispatcher import NAMES, ScriptedDispatcher, last
from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.routes import make_app
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.assemble import Ends, ServedName, body_limits, make_intake
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.headers import HeaderReader
from ts_stateful.principals.authenticator import make_authenticator
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.profile import Profile

__all__ = ["FakeFront", "client_of"]

Script = Callable[[Submit], Sequence[Event]]


def _answer(message: Submit) -> list[Event]:
    return [last(message.request_id, {"text": "red"})]


class FakeFront:
    """A `ModelFront` of the model `name`, with this configuration."""

    version, names, takes_batches, is_ready = "1.0", NAMES, False, True

    def __init__(
        self,
        name: str = "chat",
        document: Mapping[str, Any] | None = None,
        script: Script = _answer,
    ) -> None:
        self.name = name
        self.config = load_config(dict(document or {}))
        self.mailbox = AsyncMailbox()
        self.dispatcher = ScriptedDispatcher(self.mailbox, script)
        self.limits = body_limits(self.config)
        self.intake = make_intake(
            self.config,
            ServedName(name, self.version),
            Profile.ASGI,
            HeaderReader(NAMES),
            make_authenticator(self.config.engine.auth, Path()),
            Ends(self.dispatcher, self.mailbox),
        )

    async def has_started(self, timeout_s: float) -> bool:
        """See `ModelFront`."""
        return True

    def check_room(self, count: int = 1) -> None:
        """See `ModelFront`."""

    def placed(self, arrival: Arrival) -> Arrival:
        """See `ModelFront`."""
        return arrival


def client_of(*fronts: FakeFront, max_bytes: int = 1000, idle_s: float = 1.0) -> TestClient:
    """Return a client of a server that has these models."""
    models = Models(cast("list[ModelFront]", list(fronts)))
    return TestClient(make_app(models, BodyReader(max_bytes, idle_s)))
