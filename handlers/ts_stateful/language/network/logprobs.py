"""Log-probabilities of chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.kv.host_copies import to_device

__all__ = ["Chosen", "choose_logprobs"]

# JSON has no infinities; OpenAI's API has this for a token that cannot occur.
_IMPOSSIBLE = -9999.0


class Chosen(NamedTuple):
    """A chosen token; `top` has ids and log-probabilities of the likeliest ones, the likeliest first."""

    token: int
    logprob: float | None = None  # None: it was not asked for
    top: tuple[tuple[int, float], ...] = ()


def choose_logprobs(
    logits: Tensor, tokens: Sequence[int], num_top: Sequence[int | None]
) -> list[Chosen]:
    """Return the tokens with the natural log-probabilities that a row's `num_top` asks for; None asks for none.

    `logits` is `(rows, vocabulary)`, as the model gave them.
    """
    asked = [index for index, count in enumerate(num_top) if count is not None]
    chosen = [Chosen(token) for token in tokens]
    if not asked:
        return chosen
    rows = logits[to_device(asked, logits.device)].float().log_softmax(dim=-1)
    rows = rows.clamp(min=_IMPOSSIBLE)
    of_tokens = to_device([tokens[index] for index in asked], logits.device).unsqueeze(1)
    top = rows.topk(min(rows.shape[-1], max(num_top[index] or 0 for index in asked)), dim=-1)
    # One copy from the device for all numbers; float64 holds every id.
    table = torch.cat([rows.gather(1, of_tokens).double(), top.values.double(), top.indices], 1)
    for index, (logprob, *both) in zip(asked, table.tolist(), strict=True):
        half = len(both) // 2
        pairs = zip(map(int, both[half:]), both[:half], strict=True)
        chosen[index] = Chosen(tokens[index], logprob, tuple(pairs)[: num_top[index]])
    return chosen
