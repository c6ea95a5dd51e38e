"""Speculation: tokens that are likely to come next are computed as if they came, in the same pass as the one before them.

A reply that quotes its history, or corrects it, repeats long parts of it. So a draft is what followed the last tokens before
(prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding), or the model guesses it by its own weights in
8 bits, where that gains time (`guesses.py`). A reply gets as many tokens as agree with what would have been chosen:
greedy or drawn, after penalties, and by a grammar.
"""

from __future__ import annotations

import logging

from ts_stateful.language.conversation.drafts import MOST_TOKENS
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.guess_counts import GuessCount
from ts_stateful.language.guesses import Guesses
from ts_stateful.language.network.memory import is_out_of_memory
from ts_stateful.language.scheduler import Chunk
from ts_stateful.language.text.dialogue import common_prefix

__all__ = ["Drafter"]

logger = logging.getLogger(__name__)


class Drafter:
    """Writes drafts for the turns of a step, as long as few of them decode. With `guesses` they may be new text."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self.guesses: Guesses | None = None
        self.num_drafted = 0  # tokens
        self.num_accepted = 0
        self._tried: tuple[GuessCount, int] | None = None  # in this step
        self._accepted: list[int] = []  # of each draft in this step

    def extend(self, chunks: list[Chunk[Sequence]]) -> list[Chunk[Sequence]]:
        """Return a step with drafts, which each turn that decodes has in `draft`."""
        decoding = [sequence for sequence, _ in chunks if not sequence.num_to_prefill]
        self._tried, self._accepted = None, []
        for sequence in decoding:
            sequence.draft = sequence.repeated = []
        share = MOST_TOKENS // max(1, len(decoding)) - 1
        if not self._enabled or share < 1:
            return chunks
        for sequence in decoding:
            sequence.draft = sequence.repeated = _repeated(sequence, share)
        if self.guesses is not None and len(decoding) == len(chunks):
            self._guess(self.guesses, decoding)  # beside a prompt, arithmetic takes the time
        self.num_drafted += sum(len(sequence.draft) for sequence in decoding)
        return [
            (sequence, count if sequence.num_to_prefill else count + len(sequence.draft))
            for sequence, count in chunks
        ]

    def _guess(self, guesses: Guesses, decoding: list[Sequence]) -> None:
        """Give guesses to turns of which more tokens are likely to be right than of what they repeat."""
        counts = guesses.count_for(len(decoding))
        if counts is None or any(sequence.context.adapter for sequence in decoding):
            return
        count = counts.choose(min(sequence.num_after_next for sequence in decoding))
        likely = counts.expected(count)
        due = [one for one in decoding if one.context.drafts.share * len(one.repeated) <= likely]
        if len(due) == len(decoding):
            self._tried = counts, count
        try:
            found = guesses(due, count) if due else []
        except Exception as error:  # compiled code may raise anything; the step does without
            self._tried = None
            if not is_out_of_memory(error):  # which passes
                logger.warning("no more tokens are guessed", exc_info=True)
                self.guesses = None
            return
        for sequence, guess in zip(due, found, strict=True):
            sequence.draft = guess or sequence.repeated

    def learn(self, sequence: Sequence, accepted: int) -> None:
        """Take the outcome of a turn's draft, and with it what that of a shorter one would have been."""
        self.num_accepted += accepted
        self._accepted.append(accepted)
        if repeated := sequence.repeated:
            chosen = [*sequence.draft[:accepted], *sequence.ids[-1:]]
            sequence.context.drafts.learn(len(repeated), common_prefix(repeated, chosen))

    def end(self, seconds: float) -> None:
        """Take what the step took."""
        if self._tried is not None:
            counts, count = self._tried
            counts.learn(count, seconds, self._accepted)


def _repeated(sequence: Sequence, share: int) -> list[int]:
    most = min(share, sequence.num_after_next)
    if most < 1 or sequence.context.kv.recurrent is not None:
        return []
    sequence.history.update(sequence.ids)
    return sequence.context.drafts.cut(sequence.history.match(most))
