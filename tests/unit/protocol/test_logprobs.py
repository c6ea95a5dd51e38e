"""The tokens that a client has with a part of a reply."""

from __future__ import annotations

import pytest

from ts_stateful.protocol.logprobs import TokenLogprob, tokens_within

# "ab", half a character, the other half of "ö", " cd" and a half that never became one.
TOKENS = [TokenLogprob(0, end, -0.5) for end in (2, 2, 3, 6, 6)]


@pytest.mark.parametrize(
    ("num_chars", "shown", "indexes"),
    [
        (0, None, []),
        (2, None, [0]),
        (3, None, [0, 1, 2]),
        (5, None, [0, 1, 2]),
        (None, None, [0, 1, 2, 3, 4]),
        (None, [], []),
        (None, [(1, 2)], [0]),
        (None, [(2, 3), (4, 5)], [1, 2, 3]),
        (5, [(0, 1), (4, 5)], [0]),
        (None, [(6, 7)], [4]),
    ],
)
def test_tokens_of_a_part(
    num_chars: int | None, shown: list[tuple[int, int]] | None, indexes: list[int]
) -> None:
    """Whole ones, and of a reply that is not all text those with a character of it."""
    assert sorted(tokens_within(TOKENS, num_chars, shown)) == indexes
    settled = [index for index in indexes if TOKENS[index].end >= 3]
    assert sorted(tokens_within(TOKENS, num_chars, shown, 3)) == settled
