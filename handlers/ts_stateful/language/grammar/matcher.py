"""The tokens that a grammar allows next, and their place in the logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from llguidance import LLMatcher
from numpy.typing import NDArray
from torch import Tensor

from ts_stateful.language.kv.host_copies import to_device
from ts_stateful.protocol.errors import InvalidRequest

__all__ = ["FIELD", "ForbidRows", "Matcher", "forbid"]

FIELD = "response_format"  # that errors name
ForbidRows = Callable[..., None]  # of the compiled library: see `cpu_kernels/src/draw.h`
# Of processor time. A usual mask takes some 10 microseconds; all turns wait for one that takes longer.
_MAX_MASK_S = 0.05


class Matcher:
    """The state of one reply in its grammar: a function of the reply's ids."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.mask: NDArray[np.int32] = np.zeros(-(-vocab_size // 32), np.int32)

    def copy(self) -> Matcher:
        """Return another one in the same state."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size)

    def compute_mask(self) -> None:
        """Set `mask`: bit `i % 32` of word `i // 32` is 1 if token `i` may come next.

        Raises:
            InvalidRequest: the grammar is too complex to go on.
        """
        started = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
        self._check()
        if time.thread_time() - started > _MAX_MASK_S:
            raise InvalidRequest(
                "it takes too long to find the tokens that may come next; use a simpler grammar,"
                " with smaller numbers of repetitions",
                field=FIELD,
            )

    def consume(self, token: int) -> bool:
        """Take the next id; return True if the text is complete, and nothing may follow.

        Raises:
            InvalidRequest: the id is not allowed, or the grammar is too complex to go on.
        """
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(_reason(self._matcher), field=FIELD)


def forbid(
    logits: Tensor, masks: Sequence[NDArray[np.int32] | None], kernel: ForbidRows | None = None
) -> Tensor:
    """Return logits `(rows, vocabulary)` with minus infinity for tokens that a row's mask does not allow; None allows all."""
    rows = [index for index, mask in enumerate(masks) if mask is not None]
    if not rows:
        return logits
    if kernel is not None:
        logits = logits.float().contiguous()
        allowed = torch.empty_like(logits)
        addresses = np.array([0 if mask is None else mask.ctypes.data for mask in masks], np.uint64)
        given = logits.data_ptr(), *logits.shape, addresses.ctypes.data
        kernel(*given, torch.get_num_threads(), allowed.data_ptr())
        return allowed
    packed = np.stack([mask for mask in masks if mask is not None]).view(np.uint8)
    table = _penalty_of_bytes(logits.device)
    penalties = table[to_device(torch.from_numpy(packed), logits.device).int()]
    penalties = penalties.view(len(rows), -1)[:, : logits.shape[-1]]
    if len(rows) == len(masks):
        return logits + penalties
    changed = logits.to(torch.float32, copy=True)
    changed[to_device(rows, logits.device)] += penalties
    return changed


@cache
def _penalty_of_bytes(device: torch.device) -> Tensor:
    """Return what is added to the logits of eight tokens, for each byte of a mask: `(256, 8)`."""
    bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
    return torch.where(bits.bool(), 0.0, -torch.inf).to(device)


def _reason(matcher: LLMatcher) -> str:
    """Return the library's first line, and what is wrong with a regex, without the parser's state of other lines."""
    first, *others = matcher.get_error().strip().splitlines() or ["the grammar cannot be used"]
    wrong = (line.removeprefix("error:") for line in others if line.startswith("error:"))
    return f"{first}{next(wrong, '')}"[:500]
