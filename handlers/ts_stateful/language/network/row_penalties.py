"""Changes of logits that single requests ask for, before a token is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ts_stateful.language.kv.host_copies import to_device

__all__ = [
    "NO_PENALTIES",
    "PenaltySettings",
    "RowPenalties",
    "add_biases",
    "add_penalties",
    "scale_seen",
]


class TokenCounts:
    """The different ids of a list that only grows, and how often each occurs."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        self._num_counted = 0

    @property
    def ids(self) -> NDArray[np.int64]:
        """The different ids, in the order of their first occurrence."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """The number of occurrences of each of `ids`."""
        return self._counts[: len(self._places)]

    def update(self, ids: Sequence[int], start: int = 0) -> None:
        """Count what the list, which is `ids` from index `start` on, has gained."""
        for token in ids[start + self._num_counted :]:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] += 1
        self._num_counted = len(ids) - start


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
