"""The application for Ray Serve: `serve run ts_stateful.asgi:app model=PATH`."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from ts_stateful.asgi.ray_serve.replica import SessionsReplica
from ts_stateful.asgi.ray_serve.router import SessionRouter
from ts_stateful.asgi.ray_serve.scaling import SessionScaling
from ts_stateful.asgi.ray_serve.settings import RayArguments

__all__ = ["app"]

_MAX_REQUESTS = 100_000  # the front has limits of its own, and answers with its own errors
_STOP_S = 120.0  # for the running turns; longer than the default of drainSec


def app(arguments: dict[str, Any]) -> Application:
    """Return an application of one deployment, `sessions`. `RayArguments` has the arguments.

    Raises:
        ConfigError: an argument is unknown, missing or out of range.
    """
    read = RayArguments.of(arguments)
    policy = AutoscalingPolicy(
        policy_function=SessionScaling,
        policy_kwargs={"sessions": read.sessions_per_replica, "turns": read.turns_per_replica},
    )
    deployment = serve.deployment(
        serve.ingress()(SessionsReplica),
        name="sessions",
        max_ongoing_requests=_MAX_REQUESTS,
        graceful_shutdown_timeout_s=_STOP_S,
        graceful_shutdown_wait_loop_s=0.2,
        autoscaling_config=AutoscalingConfig(
            min_replicas=read.min_replicas, max_replicas=read.max_replicas, policy=policy
        ),
        request_router_config=RequestRouterConfig(request_router_class=SessionRouter),
    )
    return deployment.bind(read)
