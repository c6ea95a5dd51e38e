"""What an engine tells about itself and its sessions: `hello`, `info` and `fork`.

Owns the figures' names and where they come from; changes nothing.
"""

from __future__ import annotations

from ts_stateful.config.schema import Config
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.network.load import Model
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.protocol.answers import (
    Forked,
    HelloAnswer,
    ServerLimits,
    SessionInfo,
    TokenDetails,
    Usage,
)
from ts_stateful.protocol.profile import Profile
from ts_stateful.sessions.session import Session
from ts_stateful.version import __version__

__all__ = ["forked", "hello", "info"]


def hello(config: Config, model: Model, profile: Profile) -> HelloAnswer:
    """Who serves, and within which limits, a client that came by a frontend of this profile."""
    frontend, media = config.frontend, config.handler.media
    limits = ServerLimits(
        max_sessions=frontend.max_sessions,
        idle_s=frontend.idle_s,
        lifetime_s=frontend.lifetime_s,
        queued_prompts=frontend.max_sequence_job_queue_size,
        context_tokens=model.context_tokens,
        images=media.max_images if model.vision else 0,
        image_bytes=media.max_bytes,
        image_pixels=media.max_pixels,
    )
    return HelloAnswer(
        server="torchserve-stateful",
        version=__version__,
        profile=profile.value,
        model=model.name,
        limits=limits,
    )


def info(
    session: Session[Context], outbox: TurnOutbox, now: float, *, saved: bool | None
) -> SessionInfo:
    """The figures of one session; `now` is the engine's clock, `saved` says whether the store has all of it."""
    context = session.state
    return SessionInfo(
        session_id=session.session_id,
        age_s=round(now - session.opened_at, 3),
        idle_s=round(now - session.last_used, 3),
        expires_at=outbox.rfc3339(session.expires_at),
        turns=len(session.turns),
        tokens=len(context.log),
        cached_tokens=min(context.kv.length, len(context.log)),
        images=len(context.images),
        residency=context.residency.value,
        device_bytes=context.device_bytes + context.image_bytes,
        host_bytes=context.host_bytes,
        running=session.busy,
        waiting=max(0, len(session.work) - 1),
        saved=saved,
    )


def forked(session: Session[Context], source_id: str, outbox: TurnOutbox) -> Forked:
    """A session that has just been made from another one."""
    context = session.state
    return Forked(
        session.session_id,
        outbox.rfc3339(session.expires_at),
        Usage(
            prompt_tokens=len(context.log),
            prompt_tokens_details=TokenDetails(cached_tokens=context.kv.length),
        ),
        forked_from=source_id,
        turn=len(session.turns),
    )
