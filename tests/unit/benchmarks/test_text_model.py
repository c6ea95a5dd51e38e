"""The trained text model of the benchmark, and the dialogues that it is measured with."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.dialogues_alone import DialoguesAlone
from benchmarks.text_model.held_out import MODEL, held_out
from benchmarks.text_model.lessons import NEW, REPEATING, Verse, dialogue, parse, split

VERSES = [
    Verse("Ge1:3", "And God said, Let there be light: and there was light."),
    Verse("Ge1:5", "And God called the light Day, and the darkness he called Night."),
]


def test_verses_are_parsed_and_the_last_ones_held_out() -> None:
    """One line is one verse, with its place before it."""
    verses = parse([f"{verse.place} {verse.text}\n" for verse in VERSES])
    assert verses == VERSES
    learned, kept = split(verses * 10)
    assert len(learned) == 19
    assert kept == VERSES[1:]


@pytest.mark.parametrize("kind", sorted(REPEATING))
def test_replies_repeat(kind: str) -> None:
    """Each word of a right reply is in the dialogue before it, or in the prompt."""
    name, turns = dialogue(random.Random(1), {kind: REPEATING[kind]}, VERSES)
    assert name == kind
    known: list[str] = []
    for prompt, reply in turns:
        known += prompt.replace('"yes".', '"yes"}').split()
        assert len(set(reply.split()) - set(known)) <= 1  # a word that was corrected
        known += reply.split()


def test_a_new_reply_goes_on() -> None:
    """The prompt's words and the reply's make the two verses."""
    _, [(prompt, reply)] = dialogue(random.Random(1), NEW, VERSES)
    begun = prompt.removesuffix("\nGo on.")
    assert f"{begun} {reply}" == " ".join(verse.text for verse in VERSES)


def test_json_stays_json() -> None:
    """One value differs."""
    _, [(prompt, reply)] = dialogue(random.Random(1), {"json": REPEATING["json"]}, VERSES)
    before = json.loads(prompt.split("\n")[0])
    assert json.loads(reply) == {**before, "read": "yes"}


@pytest.mark.slow
def test_the_model_repeats_and_drafts_change_nothing() -> None:
    """Most drafted tokens of its replies are right, and nearly all replies are: another machine may round otherwise."""
    dialogues = held_out(repeating=True)
    alone = DialoguesAlone(MODEL, threads=1)
    plain, drafted = (alone.talk(dialogues, drafts) for drafts in (False, True))
    assert drafted.replies == plain.replies
    assert not plain.num_drafted
    assert drafted.num_accepted > 0.5 * drafted.num_drafted
    right = [reply for one in dialogues for reply in one.replies]
    num_right = sum(map(str.__eq__, plain.replies, right))
    assert num_right > 0.8 * len(right)
    new = held_out(repeating=False)[:4]
    assert alone.talk(new, True).replies == alone.talk(new, False).replies
