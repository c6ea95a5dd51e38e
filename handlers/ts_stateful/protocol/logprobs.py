"""Log-probabilities of the tokens of a reply."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["TokenLogprob", "num_within"]


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token of a reply: its natural log-probability, by the model's logits before any setting of the request.

    `end` counts the reply's characters up to its end. `top` has the ids and log-probabilities of the likeliest tokens in its
    place, the likeliest first.
    """

    id: int
    end: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def num_within(tokens: Sequence[TokenLogprob], num_chars: int) -> int:
    """Return how many tokens a client has with the first `num_chars` characters of the reply.

    A token without a character of its own belongs to the next one: what follows may still take it back.
    """
    count, start = 0, 0
    for token in tokens:
        if start >= num_chars or token.end > num_chars:
            break
        count, start = count + 1, token.end
    return count
