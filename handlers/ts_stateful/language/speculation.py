"""Speculation by n-grams: the tokens that followed the last ones before are computed as if they came again.

A reply that quotes its history, or corrects it, repeats long parts of it. A pass over such a draft costs little more than one
over a single token, and gives a reply as many tokens as agree with what would have been chosen: greedy or drawn, after
penalties, and by a grammar (prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from ts_stateful.language.conversation.drafts import MOST_TOKENS
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.scheduler import Chunk

__all__ = ["Drafter"]


class Drafter:
    """Writes drafts for the turns of a step, as long as few of them decode."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self.num_drafted = 0  # tokens
        self.num_accepted = 0

    def extend(self, chunks: list[Chunk[Sequence]]) -> list[Chunk[Sequence]]:
        """Return a step with drafts, which each turn that decodes has in `draft`."""
        decoding = [sequence for sequence, _ in chunks if not sequence.num_to_prefill]
        for sequence in decoding:
            sequence.draft = []
        share = MOST_TOKENS // max(1, len(decoding)) - 1
        if not self._enabled or share < 1:
            return chunks
        for sequence in decoding:
            sequence.draft = _draft(sequence, share)
            self.num_drafted += len(sequence.draft)
        return [
            (sequence, count if sequence.num_to_prefill else count + len(sequence.draft))
            for sequence, count in chunks
        ]

    def learn(self, sequence: Sequence, accepted: int) -> None:
        """Take the outcome of a turn's draft."""
        if sequence.draft:
            self.num_accepted += accepted
            sequence.context.drafts.learn(len(sequence.draft), accepted)


def _draft(sequence: Sequence, share: int) -> list[int]:
    # One is chosen after the draft.
    most = min(share, sequence.max_new_tokens - sequence.num_generated - 1)
    if most < 1 or sequence.context.kv.recurrent is not None:
        return []
    sequence.history.update(sequence.ids)
    return sequence.context.drafts.cut(sequence.history.match(most))
