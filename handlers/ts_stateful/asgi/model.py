"""A model at the front: its way to the engines, and its readiness."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from msgspec import structs

from ts_stateful.asgi.source import ModelSource
from ts_stateful.config.environment import with_environment
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.assemble import Ends, ServedName, body_limits, check_model, make_intake
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.metrics.prometheus import MeasuredModel
from ts_stateful.frontend.parsing.headers import HeaderNames, HeaderReader
from ts_stateful.principals.authenticator import make_authenticator
from ts_stateful.process.load_progress import LoadStep
from ts_stateful.process.worker.dispatch import Dispatcher, ServedModel, StatsPublisher
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.protocol.errors import InvalidRequest, ServerBusy
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.session_ids import new_session_id

__all__ = ["ModelFront", "header_names"]

# TorchServe's names, where its variables are not set.
_ID: Final = "ts_request_sequence_id"
_START: Final = "ts_request_sequence_start"
_END: Final = "ts_request_sequence_end"


class ModelFront:
    """One model, with its engines.

    `replica` is the name of this front among its replicas; the ids of new sessions end with it. Such a front has no
    supervisor, so its engines exit after its own process.

    Raises:
        ConfigError: the configuration does not work.
    """

    def __init__(
        self,
        source: ModelSource,
        fork_server: ForkServer | None = None,
        publishers: Sequence[StatsPublisher] = (),
        replica: str | None = None,
    ) -> None:
        document = with_environment(source.document, os.environ)
        config = load_config(document)
        folder = Path(source.folder)
        check_model(config, folder, torchserve=False)
        authenticator = make_authenticator(config.engine.auth, folder)
        self.name, self.version = source.name, source.version
        self.config = config
        self.names = header_names(os.environ)
        self.mailbox = AsyncMailbox()
        self._replica = replica
        owner = os.getppid() if replica is None else os.getpid()
        engines = ServedModel(config, document, source.name, folder, owner)
        self.dispatcher = Dispatcher(engines, self.mailbox, publishers, fork_server)
        self.takes_batches = config.state is not None
        self.limits = body_limits(config, self.dispatcher)
        ends = Ends(self.dispatcher, self.mailbox)
        served = ServedName(source.name, source.version)
        reader = HeaderReader(self.names)
        self.intake = make_intake(config, served, Profile.ASGI, reader, authenticator, ends)
        self._started = asyncio.Event()
        frontend = config.frontend
        self._max_requests = frontend.batch_size + frontend.job_queue_size

    @property
    def measured(self) -> MeasuredModel:
        """The model for metrics of its engines."""
        return MeasuredModel(self.name, self.dispatcher, self.config.frontend.max_sessions)

    @property
    def is_ready(self) -> bool:
        """Return True if every engine answers."""
        return self._started.is_set() and all(self.dispatcher.engines_up)

    @property
    def load_step(self) -> LoadStep | None:
        """The step at which the first engine that does not answer loads; None if none loads."""
        steps = (link.load_step for link in self.dispatcher.links)
        return next((step for step in steps if step is not None), None)

    async def start(self) -> None:
        """Return when the engines answer. Raises as `Dispatcher.start` does."""
        await asyncio.to_thread(self.dispatcher.start)
        self._started.set()

    async def has_started(self, timeout_s: float) -> bool:
        """Return True if the engines have answered; wait for that up to `timeout_s`."""
        if not self._started.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._started.wait(), timeout_s)
        return self._started.is_set()

    def check_room(self, count: int = 1) -> None:
        """Check that so many more requests may come.

        Raises:
            InvalidRequest: they are more than may ever be in flight.
            ServerBusy: they would be more than may be in flight, with those that are.
        """
        if count > self._max_requests:
            raise InvalidRequest(
                f"{count} are more than may be in flight, {self._max_requests} (batchSize and jobQueueSize together);"
                " send fewer at a time",
                field="requests",
            )
        if len(self.mailbox) + count > self._max_requests:
            raise ServerBusy(
                f"{self._max_requests} requests are in flight (batchSize and jobQueueSize together); try again later",
                retry_after_s=1.0,
            )

    def placed(self, arrival: Arrival) -> Arrival:
        """Return the request with the id of the session that it may open, if ids name their replica."""
        if self._replica is None:
            return arrival
        made = f"{new_session_id()}.{self._replica}"
        return arrival._replace(headers=structs.replace(arrival.headers, minted_id=made))

    def close(self) -> None:
        """Disconnect from the engines, which wait for the next front."""
        self.dispatcher.close()


def header_names(environ: Mapping[str, str]) -> HeaderNames:
    """Return the names of the session headers, by the variables that TorchServe's worker reads."""
    context = SimpleNamespace(
        header_key_sequence_id=environ.get("TS_REQUEST_SEQUENCE_ID", _ID),
        header_key_sequence_start=environ.get("TS_REQUEST_SEQUENCE_START", _START),
        header_key_sequence_end=environ.get("TS_REQUEST_SEQUENCE_END", _END),
    )
    return HeaderNames.of(context, environ)
