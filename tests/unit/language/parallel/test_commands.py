"""The commands of a driver, as they travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ts_stateful.language.kv.spans import Block
from ts_stateful.language.parallel.commands import (
    Clear,
    Command,
    Copy,
    Cut,
    Forget,
    Move,
    Pass,
    SpanOf,
    dump,
    load,
)

HOST = torch.device("cpu")


@pytest.mark.parametrize(
    "command",
    [Cut(1, 2), Copy(1, 2, 3), Move(1, 2, to_host=True), Clear(1), Forget([1, 2])],
    ids=str,
)
def test_commands_stay_the_same(command: Command) -> None:
    """Those without tensors need nothing else."""
    data, tensors = dump(command)
    assert load(data, HOST) == (command, [])
    assert not tensors


def test_tensors_follow_a_pass() -> None:
    """However deep they are among its inputs; positions are part of the message."""
    features = torch.rand(2, 3, dtype=torch.float16)
    output = BaseModelOutputWithPooling(pooler_output=[features])
    spans = [SpanOf(7, 0, 2, [Block(0, 2, only_windowed=True)])]
    positions = np.arange(2)[None]
    data, tensors = dump(Pass([1, 2], spans, positions, [1], {"seen": {"image": output}}))
    assert tensors[0] is features
    found, empty = load(data, HOST)
    assert isinstance(found, Pass)
    assert (found.ids, found.spans, found.keep) == ([1, 2], spans, [1])
    assert (found.positions == positions).all()
    (received,) = empty
    assert (received.shape, received.dtype) == (features.shape, features.dtype)
    received.copy_(features)
    (row,) = found.inputs["seen"]["image"].pooler_output
    assert torch.equal(row, features)
