"""The handler that TorchServe's worker runs. It has no model; engines do."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler

from ts_stateful.config.environment import with_environment
from ts_stateful.config.schema import Config, ConfigError, load_config
from ts_stateful.frontend.assemble import Ends, ServedName, body_limits, check_model, make_intake
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.delivery.pull import RUNG, ContinuousDelivery, Pace
from ts_stateful.frontend.delivery.push import SequenceDelivery
from ts_stateful.frontend.delivery.push_async import AsyncDelivery
from ts_stateful.frontend.delivery.torchserve_wire import Batch, exit_at_hangup, hear
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Dispatching, Intake
from ts_stateful.frontend.metrics.cloudwatch import CloudWatchMetrics
from ts_stateful.frontend.metrics.prometheus import MeasuredModel
from ts_stateful.frontend.observation import Observation
from ts_stateful.frontend.observer import Observer
from ts_stateful.frontend.parsing.headers import HeaderNames, HeaderReader, check_header_names
from ts_stateful.frontend.parsing.parts import bound_parts
from ts_stateful.principals.authenticator import make_authenticator
from ts_stateful.process.logs import format_worker_log
from ts_stateful.process.worker.dispatch import Dispatcher, ServedModel
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.stats import Stats

__all__ = ["Gauges", "SessionHandler"]

logger = logging.getLogger(__name__)


class Gauges:
    """Gauges of the stats of one version of a model, which TorchServe reads from lines. `cache` is the context's `metrics`."""

    def __init__(self, cache: Any, model_name: str, version: str) -> None:
        self._dimensions = [model_name, version]
        self._published: dict[str, int] = {}
        self._gauges = {
            name: cache.add_metric_to_cache(
                metric_name="Stateful" + "".join(part.title() for part in name.split("_")),
                unit="bytes" if name.endswith("_bytes") else "count",
                dimension_names=["ModelName", "ModelVersion"],
                metric_type=MetricTypes.GAUGE,
            )
            for name in Stats.__struct_fields__
        }

    def publish(self, stats: Stats) -> None:
        """Write the values that changed since the last call."""
        for name, value in structs.asdict(stats).items():
            if self._published.get(name) != value:
                self._published[name] = value
                self._gauges[name].add_or_update(value, self._dimensions)


class Delivery(Protocol):
    """The return of answers to TorchServe's batches, by one class for each profile."""

    def handle(self, data: Batch, context: Any) -> list[bytes] | Awaitable[list[bytes]]:
        """Return one body for each row, as TorchServe's `handle` does."""


class SessionHandler(BaseHandler):  # type: ignore[misc]  # ts has no types
    """Sessions on TorchServe. `dispatcher_factory` takes the arguments of `Dispatcher`."""

    dispatcher_factory: Callable[..., Dispatching] = staticmethod(Dispatcher)
    declares_states = False  # True for the entry point of models with recurrent state

    def initialize(self, context: Any) -> None:
        """Check the configuration, find or start the engines, and return when they answer.

        Raises:
            ConfigError: the configuration would hang, leak or lose something; the message has the remedy.
            EngineDied: an engine does not start.
        """
        format_worker_log()
        document = with_environment(context.model_yaml_config, os.environ)
        config = load_config(document)
        profile = config.frontend.profile
        self._check_kind(config)
        model_folder = Path(context.system_properties["model_dir"])
        check_model(config, model_folder, torchserve=True)
        check_header_names(profile, os.environ)
        authenticator = make_authenticator(config.engine.auth, model_folder)
        mailbox = AsyncMailbox() if profile is Profile.ASYNC else Inbox()
        dispatcher = self.dispatcher_factory(
            ServedModel(config, document, context.model_name, model_folder),
            mailbox,
            [
                Gauges(context.metrics, context.model_name, _version(context)),
                *CloudWatchMetrics.of(context.model_name, os.environ, sys.stdout),
            ],
        )
        dispatcher.start()
        names = HeaderNames.of(context, os.environ)
        headers = HeaderReader(names, minting=config.frontend.sequence_batching)
        bound_parts(body_limits(config).max_parts)
        ends = Ends(dispatcher, mailbox)
        served = ServedName(context.model_name, _version(context))
        intake = make_intake(config, served, profile, headers, authenticator, ends)
        intake.observer = self._observer(config, context.model_name, dispatcher)
        self._delivery = _delivery(context, intake, mailbox, config)
        # The objects of a big body make collections frequent, which would visit every object of torch each time.
        gc.collect()
        gc.freeze()
        self.initialized = True
        logger.info("model %s: profile %s", context.model_name, profile.value)

    def _observer(self, config: Config, model_name: str, engines: Any) -> Observer:
        observation = Observation(os.environ)
        port = config.engine.metrics_port
        if port is not None:
            model = MeasuredModel(model_name, engines, config.frontend.max_sessions)
            observation.export(model, port)
        return observation.of(model_name)

    def _check_kind(self, config: Config) -> None:
        if self.declares_states and config.state is None:
            raise ConfigError(
                "model-config.yaml: handler.states: declare the model's inputs, outputs and states"
            )
        if config.state is not None and not self.declares_states:
            raise ConfigError(
                "model-config.yaml: handler.states: pack the model with state_handler.py as its handler"
            )

    def handle(self, data: Batch, context: Any) -> list[bytes] | Awaitable[list[bytes]]:
        """Answer a batch; in the async profile, return a coroutine."""
        exit_at_hangup(getattr(context, "cl_socket", None))
        return self._delivery.handle(data, context)


def _version(context: Any) -> str:
    """Return the model's version in the manifest of its archive."""
    manifest = context.manifest or {}
    return str(manifest.get("model", {}).get("modelVersion", ""))


def _delivery(
    context: Any, intake: Intake, mailbox: AsyncMailbox | Inbox, config: Config
) -> Delivery:
    if isinstance(mailbox, AsyncMailbox):
        if sys.version_info >= (3, 14):  # TorchServe expects that the thread has an event loop
            asyncio.set_event_loop(asyncio.new_event_loop())
        return AsyncDelivery(intake, mailbox)
    if config.frontend.profile is Profile.SEQUENCE:
        heartbeat_s = min(20.0, config.frontend.response_timeout_s / 4)
        return SequenceDelivery(intake, mailbox, heartbeat_s=heartbeat_s)
    joins = not config.frontend.sequence_batching  # else requests wait in queues of their sequences
    rung = joins and hear(context.model_name, mailbox.ring, os.environ)
    # The time of a call is how long it waited, and TorchServe would write a line of it before each answer.
    context.metrics.add_time = lambda *_, **__: None
    return ContinuousDelivery(intake, mailbox, RUNG if rung else Pace())
