"""Changes of logits that single requests ask for, before a token is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ts_stateful.language.kv.to_device import to_device
from ts_stateful.language.network.token_counts import TokenCounts

__all__ = [
    "NO_PENALTIES",
    "PenaltySettings",
    "RowPenalties",
    "add_biases",
    "add_penalties",
    "scale_seen",
]


class PenaltySettings(NamedTuple):
    """The settings of one request: `bias` by token id; a `repetition` of 1 and a `presence` and `frequency` of 0 are off."""

    bias: Mapping[int, float] = {}
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


class RowPenalties:
    """The settings of one turn, with the counts of its ids."""

    def __init__(self, settings: PenaltySettings, num_prompt: int) -> None:
        self.settings = settings
        self.bias_ids = np.array(list(settings.bias), np.int64)
        self.biases = np.array(list(settings.bias.values()), np.float32)
        self.seen = TokenCounts()
        self.reply = TokenCounts()
        self._num_prompt = num_prompt

    def update(self, ids: Sequence[int]) -> None:
        """Count the ids that the turn has gained; `ids` is the whole context."""
        if self.settings.repetition != 1:
            self.seen.update(ids)
        if self.settings.presence or self.settings.frequency:
            self.reply.update(ids, self._num_prompt)


NO_PENALTIES = RowPenalties(PenaltySettings(), 0)

# An index of a row, and what concerns its ids.
_Changes = Iterable[tuple[int, NDArray[np.int64], NDArray[np.float32]]]


def add_biases(logits: Tensor, rows: Sequence[RowPenalties]) -> None:
    """Add each row's `logit_bias` to its logits `(rows, vocabulary)`, in place."""
    changes = ((index, row.bias_ids, row.biases) for index, row in enumerate(rows))
    _add(logits, [change for change in changes if len(change[1])])


def scale_seen(logits: Tensor, rows: Sequence[RowPenalties]) -> None:
    """Divide positive and multiply negative logits of ids in the context, in place (Keskar et al., 2019, section 4.1)."""
    changes = []
    for index, row in enumerate(rows):
        if row.settings.repetition != 1:
            ids = row.seen.ids[row.seen.ids < logits.shape[-1]]  # some models never generate a few
            changes.append((index, ids, np.full(len(ids), row.settings.repetition, np.float32)))
    if changes:
        flat = logits.view(-1)
        places, factors = _flatten(logits, changes)
        values = flat[places]
        flat[places] = torch.where(values < 0, values * factors, values / factors)


def add_penalties(logits: Tensor, rows: Sequence[RowPenalties]) -> None:
    """Subtract the presence penalty, and the frequency penalty times the count, from ids of the reply, in place.

    https://platform.openai.com/docs/guides/text-generation#frequency-and-presence-penalties has the formula.
    """
    changes = []
    for index, row in enumerate(rows):
        asked = row.settings
        if len(row.reply.ids):
            amounts = -(asked.presence + asked.frequency * row.reply.counts)
            changes.append((index, row.reply.ids, amounts.astype(np.float32)))
    _add(logits, changes)


def _add(logits: Tensor, changes: Sequence[tuple[int, Any, Any]]) -> None:
    if changes:
        places, values = _flatten(logits, changes)
        logits.view(-1).index_add_(0, places, values)


def _flatten(logits: Tensor, changes: _Changes) -> tuple[Tensor, Tensor]:
    """Return indexes into the flattened logits, and what concerns each."""
    vocabulary = logits.shape[-1]
    places, values = zip(
        *((index * vocabulary + ids, of_ids) for index, ids, of_ids in changes), strict=True
    )
    return (
        to_device(torch.from_numpy(np.concatenate(places)), logits.device),
        to_device(torch.from_numpy(np.concatenate(values)), logits.device),
    )
