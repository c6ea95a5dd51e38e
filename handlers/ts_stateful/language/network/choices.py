"""Compiled kernels by which a CPU chooses tokens from logits."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
import torch

from ts_stateful.cpu_kernels.build import cache_folder, is_worthwhile, load_library
from ts_stateful.language.grammar.matcher import ForbidRows, forbid
from ts_stateful.language.kernels.cpu.library import functions_for
from ts_stateful.language.network.sampler import DrawRows, SamplingRow, sample

__all__ = ["ChoiceKernels", "find_choices"]

logger = logging.getLogger(__name__)

_TOKENS = 4001  # no multiple of a vector


class ChoiceKernels(NamedTuple):
    """The kernels of `sample` and `forbid`; None where torch computes."""

    draw_rows: DrawRows | None = None
    forbid_rows: ForbidRows | None = None


def find_choices(device: torch.device) -> ChoiceKernels:
    """Return the kernels for a device that choose what is chosen without them."""
    is_used = is_worthwhile(device, torch.float32)
    library = load_library(cache_folder(), "language") if is_used else None
    if library is None:
        return ChoiceKernels()
    functions = functions_for(library, torch.float32)
    logits = 3 * torch.randn(16, _TOKENS, generator=torch.Generator().manual_seed(0))
    rows = [SamplingRow(0.7, top_k=i % 2 * 40, top_p=0.9, seed=i) for i in range(len(logits))]
    draws: DrawRows | None = functions.draw_rows
    forbids: ForbidRows | None = functions.forbid_rows
    if sample(logits, rows, draws) != sample(logits, rows):
        logger.warning("torch draws tokens: the compiled kernel draws others")
        draws = None
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (16, -(-_TOKENS // 32)))
    masks = [None, *words.astype(np.int32)[1:]]
    if not torch.equal(forbid(logits, masks, forbids), forbid(logits, masks)):
        logger.warning("torch forbids tokens: the compiled kernel forbids others")
        forbids = None
    return ChoiceKernels(draws, forbids)
