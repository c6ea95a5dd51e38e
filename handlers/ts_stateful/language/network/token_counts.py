"""Counts of the ids in a growing list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenCounts"]


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
