"""Answers to `hello` and `info` of a model with recurrent state."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from ts_stateful.clock import Clock
from ts_stateful.config.schema import Config
from ts_stateful.engine.reports import server_hello, session_info
from ts_stateful.protocol.answers import HelloAnswer, SessionInfo, TensorMetadata
from ts_stateful.protocol.declarations import Input, Output, State
from ts_stateful.protocol.profile import Profile
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.sessions.session import Session

__all__ = ["StateHello", "hello", "info"]


class StateHello(HelloAnswer, frozen=True, kw_only=True):
    """Answer to `hello`, with what the model takes and gives."""

    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


def hello(config: Config, model_name: str, profile: Profile) -> StateHello:
    """Describe the server, with the tensors that its model takes and gives."""
    settings = config.state
    assert settings is not None
    return StateHello(
        **structs.asdict(server_hello(config, profile, model_name)),
        inputs=_metadata(tensor for tensor in settings.inputs if not tensor.is_derived),
        outputs=_metadata(tensor for tensor in settings.outputs if not tensor.hidden),
    )


def info(session: Session[SequenceState], clock: Clock) -> SessionInfo:
    """Describe a session, whose `turns` are steps."""
    return structs.replace(session_info(session, clock), turns=session.state.num_steps)


def _metadata(tensors: Iterable[Input | Output | State]) -> list[TensorMetadata]:
    return [TensorMetadata(t.name, t.datatype.value, t.shape) for t in tensors]
