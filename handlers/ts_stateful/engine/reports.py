"""The parts of `hello` and `info` that all kinds of model share."""

from __future__ import annotations

from typing import Any

from ts_stateful.clock import Clock
from ts_stateful.config.schema import Config
from ts_stateful.protocol.answers import HelloAnswer, ServerLimits, SessionInfo
from ts_stateful.protocol.profile import Profile
from ts_stateful.sessions.session import Session
from ts_stateful.version import __version__

__all__ = ["server_hello", "session_info"]


def server_hello(config: Config, profile: Profile, model: str) -> HelloAnswer:
    """Describe the server for a client of a frontend with this profile; limits of the model itself are 0."""
    frontend = config.frontend
    limits = ServerLimits(
        max_sessions=frontend.max_sessions,
        idle_s=frontend.idle_s,
        lifetime_s=frontend.lifetime_s,
        queued_prompts=frontend.max_sequence_job_queue_size,
        context_tokens=0,
        images=0,
        image_bytes=0,
        image_pixels=0,
    )
    return HelloAnswer(
        server="torchserve-stateful",
        version=__version__,
        profile=profile.value,
        model=model,
        limits=limits,
    )


def session_info(session: Session[Any], clock: Clock) -> SessionInfo:
    """Describe a session; turns, tokens and images are the kind's to add."""
    now, state = clock.monotonic(), session.state
    return SessionInfo(
        session_id=session.session_id,
        age_s=round(now - session.opened_at, 3),
        idle_s=round(now - session.last_used, 3),
        expires_at=clock.rfc3339(session.expires_at),
        turns=0,
        tokens=0,
        cached_tokens=0,
        images=0,
        residency=state.residency.value,
        device_bytes=state.device_bytes,
        host_bytes=state.host_bytes,
        running=session.busy,
        waiting=max(0, len(session.work) - 1),
    )
