"""Log-probabilities of the tokens of a reply."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

__all__ = ["TokenLogprob", "tokens_within"]


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token of a reply: its natural log-probability, by the model's logits before any setting of the request.

    `end` counts the reply's characters up to its end. `top` has the ids and log-probabilities of the likeliest tokens in its
    place, the likeliest first.
    """

    id: int
    end: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def tokens_within(
    tokens: Sequence[TokenLogprob],
    num_chars: int | None,
    shown: Sequence[tuple[int, int]] | None = None,
    settled: int = 0,
) -> set[int]:
    """Return the indexes of the tokens that a client has with the first `num_chars` characters of the reply, None for all.

    Of a reply with other parts they are those with a character in its `shown` ranges. A token without a character of its own
    belongs to the next one: what follows may still take it back. Tokens that end before character `settled` are left out.
    """
    first = bisect_left(tokens, settled, key=lambda one: one.end)
    found, start = set(), tokens[first - 1].end if first else 0
    for index, token in enumerate(tokens[first:], first):
        if num_chars is not None and (start >= num_chars or token.end > num_chars):
            break
        if shown is None or _overlaps(shown, start, max(token.end, start + 1)):
            found.add(index)
        start = token.end
    return found


def _overlaps(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> bool:
    at = bisect_left(ranges, stop, key=lambda one: one[0])
    return at > 0 and ranges[at - 1][1] > start
