"""The text of generated ids: incremental decoding that never splits a character, and stop strings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

__all__ = ["ReplyText"]


class ReplyText:
    """The text of one reply.

    `text` may be shown: it grows by whole characters, and excludes what could become a stop string, unless the reply
    `includes_stop`. Its increments, concatenated, are the whole reply. With `shows_special` it has special tokens too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        includes_stop: bool = False,
        shows_special: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._hides_special = not shows_special
        self._stream = DecodeStream(skip_special_tokens=self._hides_special)
        self._stop = tuple(stop)
        self._includes_stop = includes_stop
        self._decoded = ""
        self._ends: list[int] = []  # characters decoded after each token
        self._ids: list[int] = []
        self._shown = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """The text that may be shown so far."""
        return self._decoded[: self._shown]

    @property
    def num_decoded(self) -> int:
        """The number of characters decoded so far, shown or not."""
        return len(self._decoded)

    @property
    def last_piece(self) -> str:
        """The text that the last id added, shown or not."""
        return self._decoded[self._ends[-2] if len(self._ends) > 1 else 0 :]

    @property
    def num_kept(self) -> int:
        """The number of ids up to the last one that has shown text alone; those of a stop string do not count."""
        if not self.stopped:
            return len(self._ids)
        places = enumerate(itertools.pairwise((0, *self._ends)), start=1)
        return max((n for n, (start, end) in places if start < end <= self._shown), default=0)

    @property
    def rest(self) -> str:
        """The shown text after the ids that are kept: what a token has before the stop string in it."""
        kept = self.num_kept
        return self._decoded[(0, *self._ends)[kept] : self._shown] if self.stopped else ""

    def push(self, token_id: int) -> bool:
        """Append the next id; return True if a stop string is complete, which ends the reply."""
        self._ids.append(token_id)
        self._grow(self._stream.step(self._tokenizer, token_id) or "")
        self._ends.append(len(self._decoded))
        return self.stopped

    def finish(self) -> str:
        """End the reply and show the rest, including bytes that never became a character, up to a stop string."""
        if not self.stopped:
            whole = self._tokenizer.decode(self._ids, skip_special_tokens=self._hides_special)
            if whole.startswith(self._decoded):
                self._grow(whole[len(self._decoded) :])
        if not self.stopped:
            self._shown = len(self._decoded)
        return self.text

    def _grow(self, piece: str) -> None:
        searched = max(0, len(self._decoded) - max(map(len, self._stop), default=0))
        self._decoded += piece
        starts = [(self._decoded.find(stop, searched), len(stop)) for stop in self._stop]
        found = [place for place in starts if place[0] >= 0]
        if found:
            start, length = min(found)
            self._shown = start + length * self._includes_stop
            self.stopped = True
        else:
            self._shown = len(self._decoded) - self._held_back()

    def _held_back(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in () if self._includes_stop else self._stop:
            lengths = range(min(len(stop) - 1, len(self._decoded)), longest, -1)
            longest = next((n for n in lengths if self._decoded.endswith(stop[:n])), longest)
        return longest
