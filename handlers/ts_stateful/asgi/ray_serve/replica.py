"""A replica: the front and the engines of one model, in an actor of Ray."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from msgspec import structs
from ray import serve
from ray.serve.metrics import Gauge
from starlette.applications import Starlette

from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.ray_serve.scaling import SESSIONS, TURNS
from ts_stateful.asgi.ray_serve.settings import RayArguments, check_replica
from ts_stateful.asgi.routes import make_app
from ts_stateful.asgi.source import open_source
from ts_stateful.frontend.observation import Observation
from ts_stateful.process.drain import end_engines, engines_in
from ts_stateful.process.logs import configure_logs
from ts_stateful.protocol.errors import EngineUnavailable
from ts_stateful.protocol.stats import Stats

__all__ = ["SessionsReplica"]

_MAX_BODY_BYTES = 28_000_000  # as `ts-stateful serve`
_ENGINES_STOP_S = 30.0


class _RayGauges:
    """A gauge `ts_stateful_...` for each of the stats, which Ray labels with the replica. A `StatsPublisher`."""

    def __init__(self) -> None:
        self._gauges = {
            name: Gauge(f"ts_stateful_{name}", description=name.replace("_", " "))
            for name in Stats.__struct_fields__
        }

    def publish(self, stats: Stats) -> None:
        """See `StatsPublisher`."""
        for name, value in structs.asdict(stats).items():
            self._gauges[name].set(value)


class SessionsReplica:
    """A replica, which is ready when its engines answer. They exit with it, finishing their turns.

    Raises:
        ConfigError: the model or its configuration does not work, or a replica's sessions could not go on at another.
        EngineDied: an engine does not start.
    """

    async def __init__(self, arguments: RayArguments) -> None:  # type: ignore[misc] # Ray awaits it
        configure_logs("replica")
        self._home = Path(tempfile.mkdtemp(prefix="ts-"))
        self._temporary = self._home / "tmp"
        self._temporary.mkdir(mode=0o700)
        # The process is the replica's alone; by this folder its engines are found.
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._temporary)
        config = Path(arguments.config) if arguments.config is not None else None
        source = open_source(arguments.model, self._home, name=arguments.name, config=config)
        place = serve.get_replica_context().replica_id.unique_id
        model = ModelFront(source, publishers=(_RayGauges(),), replica=place)
        check_replica(model.config, model.names, os.environ)
        model.intake.observer = Observation(os.environ).of(model.name)
        self._models = Models([model])
        await self._models.start()

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the application that answers this replica's requests."""
        bodies = BodyReader(_MAX_BODY_BYTES)
        return make_app(self._models, bodies, names_requests=False)  # Ray Serve does

    def check_health(self) -> None:
        """Raise `EngineUnavailable` if an engine does not answer; Ray Serve then replaces the replica."""
        if not self._models.is_ready:
            raise EngineUnavailable("an engine does not answer", retry_after_s=1.0)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the metrics that `SessionScaling` reads."""
        stats = [one for model in self._models for one in model.dispatcher.stats_by_engine]
        return {
            SESSIONS: float(sum(one.sessions_open for one in stats)),
            TURNS: float(sum(one.turns_in_progress for one in stats)),
        }

    async def __del__(self) -> None:
        """End the engines. Ray Serve calls this after the last answer."""
        self._models.close()
        engines = engines_in(self._temporary)
        await asyncio.to_thread(end_engines, engines, _ENGINES_STOP_S)
        shutil.rmtree(self._home, ignore_errors=True)
