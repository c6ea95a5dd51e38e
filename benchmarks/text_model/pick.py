"""Pick the dialogues of the measurement: `python -m benchmarks.text_model.pick --text bible.txt` writes `held_out.json`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.dialogues_alone import DialoguesAlone
from benchmarks.text_model.held_out import FOLDER, MODEL, HeldOut
from benchmarks.text_model.lessons import NEW, REPEATING, Verse, dialogue, parse, split

_OF_A_KIND: Final = 4
_TRIED: Final = 60  # of a kind
_NEW: Final = 12
_SHORTEST, _LONGEST = 90, 220  # characters of a verse


def pick(held_out: list[Verse], seed: int) -> list[HeldOut]:
    """Return dialogues about verses that are not learned: of each kind that repeats, some in which the model is right."""
    rng = random.Random(seed)
    verses = [verse for verse in held_out if _SHORTEST <= len(verse.text) <= _LONGEST]
    alone = DialoguesAlone(MODEL, threads=1)
    picked: list[HeldOut] = []
    for kind, make in REPEATING.items():
        right: list[HeldOut] = []
        num_tried = 0
        while len(right) < _OF_A_KIND and num_tried < _TRIED:
            num_tried += 1
            _, turns = dialogue(rng, {kind: make}, verses)
            made = HeldOut(kind, [prompt for prompt, _ in turns], [reply for _, reply in turns])
            if alone.talk([made], drafts=False).replies == made.replies:
                right.append(made)
        picked += right
        sys.stdout.write(f"{kind}: {len(right)} of {num_tried} are right\n")
    for _ in range(_NEW):
        kind, turns = dialogue(rng, NEW, verses)
        picked.append(HeldOut(kind, [prompt for prompt, _ in turns]))
    return picked


def main() -> None:
    """Take the command line and write."""
    parser = argparse.ArgumentParser(description="Pick the dialogues of the measurement.")
    parser.add_argument("--text", type=Path, required=True, help="what `bible -f` writes")
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    _, held_out = split(parse(options.text.read_text().splitlines()))
    document = msgspec.json.format(msgspec.json.encode(pick(held_out, options.seed)), indent=1)
    (FOLDER / "held_out.json").write_bytes(document + b"\n")


if __name__ == "__main__":
    main()
