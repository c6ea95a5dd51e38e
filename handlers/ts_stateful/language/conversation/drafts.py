"""Drafts of the next tokens of a session's replies: their content, and how long they are."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

__all__ = ["MOST_TOKENS", "Drafts", "Match", "TokenHistory"]

MOST_TOKENS = 32  # of all decoding turns in a step
_LONGEST = 15  # tokens of a draft
_SHORTEST = 2
# Tokens that must have occurred before; so many more that a draft is tried even in a pause.
_MATCH, _CERTAIN = 3, 6
# A token of a draft costs about this share of a step, so a draft has to be right more often.
_COST = 0.3
_WEIGHT = 0.3  # of the last draft in the share that is right
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 64  # tokens
_BYTES = 4  # of an id


class Match(NamedTuple):
    """The tokens that followed where the last ones occurred before; `length` of these, up to `_CERTAIN`, are the same."""

    length: int
    tokens: list[int]


class Drafts:
    """The length of one session's drafts, by what became of the earlier ones."""

    __slots__ = ("_left", "_length", "_pause", "share")

    def __init__(self) -> None:
        self._length = _SHORTEST
        self.share = 0.5  # of drafts' tokens that were right, the last ones weighing most
        self._pause = _FIRST_PAUSE  # after the next draft, if that share is too small
        self._left = 0  # of the present pause

    def cut(self, match: Match) -> list[int]:
        """Return as much of a continuation as is worth its cost, at each token of a reply."""
        self._left = max(0, self._left - 1)
        if self._left and match.length < _CERTAIN:
            return []
        return match.tokens[: self._length]

    def learn(self, drafted: int, accepted: int) -> None:
        """Take the outcome of a draft."""
        self.share += _WEIGHT * (accepted / drafted - self.share)
        self._length = min(_LONGEST, max(_SHORTEST, 2 * accepted))
        if self.share < _COST:
            self._left = self._pause
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        else:
            self._left, self._pause = 0, _FIRST_PAUSE


class TokenHistory:
    """The ids of a turn, four bytes each, in memory that grows with them."""

    def __init__(self) -> None:
        self._ids = bytearray()

    def update(self, ids: list[int]) -> None:
        """Add the ids that the turn has gained."""
        self._ids += array("i", ids[len(self._ids) // _BYTES :]).tobytes()

    def match(self, most: int) -> Match:
        """Return up to `most` ids that followed where the last ids occurred before: most of them, and at last."""
        # Most tokens end here. After a pass, whose weights fill the caches, numpy takes five times as long to find nothing.
        if self._ids.rfind(self._ids[-_BYTES * _MATCH :], 0, -_BYTES) < 0:
            return Match(0, [])
        ids = np.frombuffer(self._ids, np.int32)
        (ends,) = (ids[_CERTAIN - 1 : -1] == ids[-1:]).nonzero()
        ends += _CERTAIN - 1
        length = 1
        while len(ends) and length < _CERTAIN:
            longer = ends[ids[ends - length] == ids[-1 - length]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        if length < _MATCH:
            return Match(0, [])
        after = int(ends[-1]) + 1
        return Match(length, ids[after : after + most].tolist())
