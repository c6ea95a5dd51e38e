"""Copies to the host."""

from __future__ import annotations

import torch

from ts_stateful.language.kv.host_copies import HostCopy


def test_numbers_arrive_as_they_are() -> None:
    """They can be read more than once."""
    copy = HostCopy(torch.tensor([3, -1, 1 << 40]))
    assert copy.values == [3, -1, 1 << 40]
    assert copy.values is copy.values
