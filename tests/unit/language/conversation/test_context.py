"""What an engine keeps for a session, where there is no memory for it."""

from __future__ import annotations

import pytest
import torch

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Delta
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.sessions.session import Residency

HOST = torch.device("cpu")
IDS = (1, 2, 3)


@pytest.fixture
def context() -> Context:
    """A session of three tokens with their states."""
    kv = KVCache(KVLayout((LayerShape(1, 4, 4),), torch.float32), HOST)
    kv.reserve(len(IDS))
    kv.length = len(IDS)
    return Context(Delta(ids=IDS), kv)


def test_sessions_with_the_same_ids_share_their_objects(context: Context) -> None:
    """Ids that two texts gave are one object in the histories and logs of both."""
    (large,) = map(int, ["100000"])
    context.open([large])
    (other,) = Delta(ids=tuple(map(int, ["100000"]))).ids
    assert context.log == [large]
    assert context.log[0] is context.opening.ids[0] is other


def refuse(patch: pytest.MonkeyPatch, error: Exception) -> None:
    def move(*_: object) -> None:
        raise error

    patch.setattr(KVCache, "move", move)


def of_cuda(code: int) -> torch.AcceleratorError:
    """An error as torch makes it of one of CUDA."""
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no room to gather them"), of_cuda(2), MemoryError()],
    ids=["device", "pinned", "host"],
)
def test_states_that_host_memory_cannot_take_are_dropped(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whoever needs the room on the device gets it."""
    refuse(monkeypatch, error)
    context.to_host()
    assert context.residency is Residency.RECORD
    assert context.kv.device == HOST
    assert (context.device_bytes, context.host_bytes) == (0, 0)
    assert context.to_device() == "replay"


def test_a_poisoned_device_is_not_taken_for_a_full_host(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the engine."""
    refuse(monkeypatch, of_cuda(700))
    with pytest.raises(torch.AcceleratorError):
        context.to_host()


def test_states_that_the_device_cannot_take_are_computed_again(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a pass, which makes room."""
    context.to_host()
    assert context.residency is Residency.HOST
    refuse(monkeypatch, torch.OutOfMemoryError())
    assert context.to_device() == "replay"
    assert (context.residency, context.host_bytes) == (Residency.RECORD, 0)
