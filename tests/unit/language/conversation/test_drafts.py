"""The content and the length of drafts."""

from __future__ import annotations

import pytest

from ts_stateful.language.conversation.drafts import Drafts, Match, TokenHistory


def match(ids: list[int], most: int = 4) -> Match:
    history = TokenHistory()
    history.update(ids[: len(ids) // 2])
    history.update(ids)
    return history.match(most)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], Match(0, [])),
        ([1, 2, 3], Match(0, [])),
        ([9, 9, 9, 9, 1, 2, 3, 4, 5, 1, 2, 3], Match(3, [4, 5, 1, 2])),
        ([9, 9, 9, 9, 1, 2, 3, 4, 5, 0, 2, 3], Match(0, [])),  # two are not enough
        ([9, 9, 9, 1, 2, 3, 4, 9, 1, 2, 3, 5, 1, 2, 3], Match(3, [5, 1, 2, 3])),  # the last place
        (
            [8, 7, 9, 7, 1, 2, 3, 4, 9, 1, 2, 3, 5, 7, 1, 2, 3],
            Match(4, [4, 9, 1, 2]),
        ),  # the longest
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7], Match(6, [8, 1, 2, 3])),
        ([5, 5, 5, 5, 5, 5, 5, 5], Match(6, [5])),  # what is known
    ],
)
def test_what_followed_follows(ids: list[int], expected: Match) -> None:
    """The longest match counts, and of those the last one."""
    assert match(ids) == expected


def lengths(drafts: Drafts, share: float, count: int, certain: bool = False) -> list[int]:
    """Draft so often, right to this share; return the lengths."""
    found = []
    for _ in range(count):
        draft = drafts.cut(Match(6 if certain else 3, [1] * 32))
        found.append(len(draft))
        if draft:
            drafts.learn(len(draft), int(share * len(draft)))
    return found


def test_right_drafts_become_longer() -> None:
    """Up to a bound; a wrong one begins again."""
    drafts = Drafts()
    assert lengths(drafts, 1, 6) == [2, 4, 8, 15, 15, 15]
    assert lengths(drafts, 0, 2) == [15, 2]


def test_wrong_drafts_pause() -> None:
    """So text that repeats nothing costs next to nothing."""
    drafts = Drafts()
    assert sum(length > 0 for length in lengths(drafts, 0, 1000)) < 1000 / 50


def test_a_long_match_ends_a_pause() -> None:
    """A reply that begins to quote is foreseen at once."""
    drafts = Drafts()
    lengths(drafts, 0, 100)
    assert lengths(drafts, 1, 4, certain=True) == [2, 4, 8, 15]
    assert lengths(drafts, 1, 1) == [15]
