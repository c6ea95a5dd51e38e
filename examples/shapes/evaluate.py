"""Ask the trained model about fresh scenes: `python examples/shapes/evaluate.py`.

Everything goes the way of any user of transformers: AutoProcessor, AutoModelForImageTextToText, the
chat template, greedy `generate`. The history holds the model's own answers, as in a session, so a
wrong one may bring the next to fall.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from PIL import Image
from tqdm import tqdm
from transformers import AutoModelForImageTextToText, AutoProcessor

from descriptions import is_right
from dialogues import MAX_TURNS, Ask, Question, answers, random_dialogue
from scenes import Scene, draw, random_scene

FOLDER: Final = Path(__file__).parent
MODEL: Final = FOLDER / "model"
REQUIRED: Final = 0.97
# An answer and its end are two tokens, a description and its end at most 62; more shows a model that rambles.
MAX_ANSWER: Final = 4
MAX_DESCRIPTION: Final = 72


class Outcome(NamedTuple):
    """One question, what was right and what the model said."""

    scene: Scene
    questions: Sequence[Question]
    turn: int  # from 1
    right: str
    said: str

    @property
    def ask(self) -> Ask:
        """The kind of the question."""
        return self.questions[self.turn - 1].ask

    @property
    def is_right(self) -> bool:
        """Return True for the right answer, and for each right description."""
        if self.ask is Ask.DESCRIBE:
            return is_right(self.scene, self.said)
        return self.said == self.right


class Model:
    """A model folder, loaded like any other."""

    def __init__(self, folder: Path) -> None:
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def reply(
        self,
        images: list[Image.Image],
        conversations: list[list[dict[str, Any]]],
        max_new_tokens: int = MAX_ANSWER,
    ) -> list[str]:
        """The greedy answer to each conversation; each has one image."""
        prompts = self.processor.apply_chat_template(conversations, add_generation_prompt=True)
        inputs = self.processor(images=images, text=prompts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            ids = self._model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        fresh = ids[:, inputs["input_ids"].shape[1] :]
        texts: list[str] = self.processor.batch_decode(fresh, skip_special_tokens=True)
        return texts

    def converse(
        self, scenes: Sequence[Scene], dialogues: Sequence[Sequence[Question]]
    ) -> Iterator[Outcome]:
        """Hold dialogues of the same length, one about each scene, all at once."""
        images = [draw(scene) for scene in scenes]
        right = [answers(*each) for each in zip(scenes, dialogues, strict=True)]
        conversations: list[list[dict[str, Any]]] = [[] for _ in scenes]
        for turn in range(len(dialogues[0])):
            for conversation, questions in zip(conversations, dialogues, strict=True):
                conversation.append(user_message(questions[turn].text, with_image=turn == 0))
            describes = [questions[turn].ask is Ask.DESCRIBE for questions in dialogues]
            for is_long, longest in ((False, MAX_ANSWER), (True, MAX_DESCRIPTION)):
                rows = [row for row, describe in enumerate(describes) if describe is is_long]
                if not rows:
                    continue
                asked = [conversations[row] for row in rows]
                said = self.reply([images[row] for row in rows], asked, longest)
                for row, text in zip(rows, said, strict=True):
                    conversations[row].append({"role": "assistant", "content": text})
                    yield Outcome(scenes[row], dialogues[row], turn + 1, right[row][turn], text)


def user_message(text: str, with_image: bool) -> dict[str, Any]:
    """A user's message, with the session's image before the text or without one."""
    parts: list[dict[str, str]] = [{"type": "image"}] if with_image else []
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def fresh_outcomes(model: Model, seed: int, num_scenes: int, batch: int) -> Iterator[Outcome]:
    """A dialogue of full length about each of so many random scenes, as many batches at once as there are cores."""
    rng = random.Random(f"evaluation {seed}")  # a string: never a seed of the training
    scenes = [random_scene(rng) for _ in range(num_scenes)]
    dialogues = [random_dialogue(rng, scene) for scene in scenes]

    def converse(start: int) -> list[Outcome]:
        end = start + batch
        return list(model.converse(scenes[start:end], dialogues[start:end]))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for outcomes in pool.map(converse, range(0, num_scenes, batch)):
            yield from outcomes


class Table:
    """Right answers by kind of question and turn."""

    def __init__(self) -> None:
        self._right: Counter[tuple[Ask, int]] = Counter()
        self._total: Counter[tuple[Ask, int]] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        cell = (outcome.ask, outcome.turn)
        self._total[cell] += 1
        self._right[cell] += outcome.is_right

    def shares(self) -> dict[Ask, float]:
        """The share of right answers of each kind that was asked."""
        sums = {ask: self._sum([(ask, turn) for turn in _TURNS]) for ask in Ask}
        return {ask: right / total for ask, (right, total) in sums.items() if total}

    def __str__(self) -> str:
        """Rows are kinds, columns are turns, in percent."""
        head = ["kind", "right", "total", "%", *(f"turn {turn}" for turn in _TURNS)]
        rows = [self._row(ask.value, [ask]) for ask in Ask] + [self._row("all", list(Ask))]
        return "\n".join("".join(f"{cell:>8}" for cell in row) for row in [head, *rows])

    def _row(self, name: str, asks: list[Ask]) -> list[str]:
        turns = [[(ask, turn) for ask in asks] for turn in _TURNS]
        right, total = self._sum([cell for cells in turns for cell in cells])
        percents = [_percent(*self._sum(cells)) for cells in turns]
        return [name, str(right), str(total), _percent(right, total), *percents]

    def _sum(self, cells: list[tuple[Ask, int]]) -> tuple[int, int]:
        return sum(self._right[cell] for cell in cells), sum(self._total[cell] for cell in cells)


_TURNS: Final = range(1, MAX_TURNS + 1)


def _percent(right: int, total: int) -> str:
    return f"{100 * right / total:.2f}" if total else "-"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Hold dialogues of eight turns about freshly drawn scenes, print the share of "
        f"right answers. The exit status is 1 if a kind of question is under {REQUIRED:.0%}.",
        epilog="Columns are the turns of a dialogue; `-` is a question that cannot come so early.",
    )
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder (%(default)s)")
    parser.add_argument(
        "--scenes", type=int, default=1500, help="a dialogue about each (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of scenes and questions (%(default)s)")
    parser.add_argument("--batch", type=int, default=25, help="dialogues of a batch (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="print every wrong answer")
    return parser.parse_args()


def main() -> int:
    """Evaluate, print the table; 1 if a kind of question fails."""
    arguments = parse_arguments()
    # The model is too small to share an operation among cores; whole batches are shared instead.
    torch.set_num_threads(1)
    table = Table()
    outcomes = fresh_outcomes(
        Model(arguments.model), arguments.seed, arguments.scenes, arguments.batch
    )
    with tqdm(outcomes, total=arguments.scenes * MAX_TURNS, unit="question") as bar:
        for outcome in bar:
            table.add(outcome)
            if arguments.verbose and not outcome.is_right:
                asked = " ".join(each.text for each in outcome.questions[: outcome.turn])
                bar.write(f"{asked} -> {outcome.said}, not {outcome.right}: {outcome.scene}")
    print(table)
    return int(any(share < REQUIRED for share in table.shares().values()))


if __name__ == "__main__":
    sys.exit(main())
