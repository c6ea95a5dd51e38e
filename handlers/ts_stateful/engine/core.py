"""The parts that every kind of model builds on: sessions, their requests and answers, time and store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from ts_stateful.config.schema import Config
from ts_stateful.engine.backlog import Backlog
from ts_stateful.engine.outbox import Outbox
from ts_stateful.engine.quotas import Quotas
from ts_stateful.engine.services import Services
from ts_stateful.engine.waiting import WaitingRequests
from ts_stateful.sessions.places import Limits
from ts_stateful.sessions.session import StateT
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable

__all__ = ["EngineCore"]


class EngineCore(Generic[StateT]):
    """The objects that the parts of one engine share."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        services: Services,
        shared: SharedCache[Any] | None = None,
        cost: Callable[[StateT], float] | None = None,
    ) -> None:
        self.config = config
        self.clock = services.clock
        self.queue = services.queue
        self.store = services.store
        self.shared = shared if shared is not None else SharedCache[Any](0)
        self.quotas = Quotas(config, limits.max_sessions, self.clock)
        self.table: SessionTable[StateT] = SessionTable(
            limits, self.shared, self.quotas, self.clock, cost
        )
        self.outbox = Outbox(services.events, self.clock)
        self.waiting = WaitingRequests()
        self.backlog = Backlog(
            self.table,
            self.clock,
            most=config.engine.max_queued_sequences,
            wait_s=config.engine.queued_sequence_sec,
        )
