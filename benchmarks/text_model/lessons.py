"""Dialogues made of verses: whose replies repeat their history, and whose replies do not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = ["NEW", "REPEATING", "Dialogue", "Verse", "dialogue", "parse", "split"]

_HELD_OUT: Final = 20  # one of so many verses

Dialogue = list[tuple[str, str]]  # prompts and their right replies


class Verse(NamedTuple):
    """A verse and its place, such as `Ge1:2`."""

    place: str
    text: str


_MISSPELT: Final = {
    "and": "adn",
    "the": "teh",
    "that": "taht",
    "unto": "utno",
    "shall": "shlal",
    "they": "tehy",
    "with": "wiht",
    "were": "wree",
    "which": "whcih",
    "from": "form",
    "people": "poeple",
    "king": "knig",
}


def parse(lines: Sequence[str]) -> list[Verse]:
    """Return the verses of the lines that `bible -f` writes."""
    return [Verse(*line.rstrip("\n").split(" ", 1)) for line in lines]


def split(verses: list[Verse]) -> tuple[list[Verse], list[Verse]]:
    """Return verses to learn, and the last ones of the text, which are held out."""
    cut = len(verses) - len(verses) // _HELD_OUT
    return verses[:cut], verses[cut:]


def _quote(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    text = verses[0].text
    return [(f"{text}\nQuote it.", text)]


def _second(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    first, second = verses[0].text, verses[1].text
    return [(f"{first}\n{second}\nQuote the second line.", second)]


def _correct(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    words = verses[0].text.split(" ")
    places = [place for place, word in enumerate(words) if word in _MISSPELT]
    if not places:
        return _quote(rng, verses)
    wrong = list(words)
    place = rng.choice(places)
    wrong[place] = _MISSPELT[words[place]]
    return [(f"{' '.join(wrong)}\nCorrect it.", verses[0].text)]


def _json(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    made = {"verse": verses[0].place, "text": verses[0].text, "read": "no"}
    before = json.dumps(made)
    return [
        (
            f'{before}\nWrite it again with "read": "yes".',
            json.dumps({**made, "read": "yes"}),
        )
    ]


def _lines(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    text = verses[0].text
    broken = text.replace(", ", ",\n")
    return [
        (f"{text}\nBreak it into lines.", broken),
        ("Write it in one line again.", text),
    ]


def _again(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    (prompt, reply), *_ = rng.choice((_quote, _correct, _json))(rng, verses)
    return [(prompt, reply), ("Say that again.", reply)]


def _go_on(rng: random.Random, verses: Sequence[Verse]) -> Dialogue:
    words = " ".join(verse.text for verse in verses).split(" ")
    cut = max(1, min(rng.randint(4, 10), len(words) - 1))
    return [(f"{' '.join(words[:cut])}\nGo on.", " ".join(words[cut:]))]


_Maker = Callable[[random.Random, Sequence[Verse]], Dialogue]
REPEATING: Final[dict[str, _Maker]] = {
    "quote": _quote,
    "second": _second,
    "correct": _correct,
    "json": _json,
    "lines": _lines,
    "again": _again,
}
NEW: Final[dict[str, _Maker]] = {"go on": _go_on}


def dialogue(
    rng: random.Random, kinds: dict[str, _Maker], verses: Sequence[Verse]
) -> tuple[str, Dialogue]:
    """Return a dialogue of one of these kinds, and the kind's name, about two verses that follow each other."""
    name = rng.choice(list(kinds))
    place = rng.randrange(len(verses) - 1)
    return name, kinds[name](rng, verses[place : place + 2])
