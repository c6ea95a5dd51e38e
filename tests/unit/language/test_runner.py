"""The outcome of several passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ts_stateful.language.runner import Logits


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_pass_that_failed_has_no_part_in_it(device: str) -> None:
    """Wherever the others have their rows: what has failed has none on any device."""
    sequences: list[Any] = ["a", "b"]
    failed = Logits([], torch.empty(0))
    made = [Logits([name], torch.empty(1, 5, device=device)) for name in sequences]
    joined = Logits.join([failed, made[0], failed, made[1]])
    assert joined.sequences == sequences
    assert (joined.rows.shape, joined.rows.device.type) == ((2, 5), device)
    assert Logits.join([failed, failed]).sequences == []
