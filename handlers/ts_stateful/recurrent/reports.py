"""What the engine of a model with recurrent state tells about itself and its sessions.

Owns where the figures of `hello` and `info` come from; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ts_stateful.config.schema import Config
from ts_stateful.engine.outbox import Outbox
from ts_stateful.protocol.answers import HelloAnswer, ServerLimits, SessionInfo
from ts_stateful.protocol.declarations import Input, Output, State
from ts_stateful.protocol.profile import Profile
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.sessions.session import Session
from ts_stateful.version import __version__

__all__ = ["StateHello", "TensorMetadata", "hello", "info"]


class TensorMetadata(Struct, frozen=True):
    """A tensor under the names of the Open Inference Protocol; `shape` is that of one row, -1 where it is free."""

    name: str
    datatype: str
    shape: Sequence[int]


class StateHello(HelloAnswer, frozen=True, kw_only=True):
    """Answer to `hello`, with what the model takes and gives."""

    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


def hello(config: Config, model_name: str, profile: Profile) -> StateHello:
    """Who serves, which tensors, and within which limits."""
    frontend, settings = config.frontend, config.state
    assert settings is not None
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
    return StateHello(
        server="torchserve-stateful",
        version=__version__,
        profile=profile.value,
        model=model_name,
        limits=limits,
        inputs=_metadata(tensor for tensor in settings.inputs if not tensor.is_derived),
        outputs=_metadata(tensor for tensor in settings.outputs if not tensor.hidden),
    )


def info(session: Session[SequenceState], answering: Outbox, now: float) -> SessionInfo:
    """The figures of one session, whose `turns` are steps; `now` is the engine's clock."""
    state = session.state
    return SessionInfo(
        session_id=session.session_id,
        age_s=round(now - session.opened_at, 3),
        idle_s=round(now - session.last_used, 3),
        expires_at=answering.rfc3339(session.expires_at),
        turns=state.num_steps,
        tokens=0,
        cached_tokens=0,
        images=0,
        residency=state.residency.value,
        device_bytes=state.device_bytes,
        host_bytes=state.host_bytes,
        running=session.busy,
        waiting=max(0, len(session.work) - 1),
    )


def _metadata(tensors: Iterable[Input | Output | State]) -> list[TensorMetadata]:
    return [TensorMetadata(t.name, t.datatype.value, t.shape) for t in tensors]
