"""Defects that cost a turn, and those that end the engine."""

from __future__ import annotations

import torch

from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import InternalError

__all__ = ["turn_defect"]


def turn_defect(error: Exception, where: str) -> InternalError:
    """Log and return a turn's `defect`.

    The error of a poisoned device is raised again: the process must die, and its supervisor starts another.
    """
    if isinstance(error, torch.AcceleratorError):
        raise error
    return defect(error, where)
