"""Questions about a scene and their right answers: the one definition of both.

Training, evaluation and tests ask this module. A dialogue is a sequence of questions; every answer
is a function of the scene and the questions so far:

- `it` is the shape last named in a question or in an answer. Every question with a kind of shape
  in it names one, and so does the answer `square` to `Which shape is blue?`; the answer `none`
  names nothing. A description names several; the last one counts, be it there or missing.
- `And the square?` repeats the last question about a single shape, that is one for a color (of a
  named shape or of `it`) or one for existence, however long ago; it names the square.
- `How many questions have I asked?` counts all of the user's questions, itself included.
- What is not in the scene has the color `none`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from descriptions import describe
from scenes import COLORS, KINDS, Scene

NONE: Final = "none"
NUMBERS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")
MAX_TURNS: Final = len(NUMBERS)


class Ask(Enum):
    """The kinds of questions; the values are the rows of the evaluation's table."""

    COUNT = "count"
    COLOR = "color"
    WHICH = "which"
    EXISTS = "exists"
    IT = "it"
    AND = "and"
    ASKED = "asked"
    DESCRIBE = "describe"


_TEXTS: Final = {
    Ask.COUNT: "How many shapes are there?",
    Ask.COLOR: "What color is the {}?",
    Ask.WHICH: "Which shape is {}?",
    Ask.EXISTS: "Is there a {}?",
    Ask.IT: "What color is it?",
    Ask.AND: "And the {}?",
    Ask.ASKED: "How many questions have I asked?",
    Ask.DESCRIBE: "Describe the picture.",
}
_ARGUMENTS: Final[Mapping[Ask, Sequence[str]]] = {
    Ask.COLOR: KINDS,
    Ask.WHICH: COLORS,
    Ask.EXISTS: KINDS,
    Ask.AND: KINDS,
}

# Weights of the kinds of questions in a dialogue. A description is as long as fifty other answers, so there are few.
_USUAL: Final[Mapping[Ask, float]] = {**dict.fromkeys(Ask, 1.0), Ask.DESCRIBE: 0.25}


@dataclass(frozen=True)
class Question:
    """One question; `about` is the kind or the color in it, empty where there is none."""

    ask: Ask
    about: str = ""

    @property
    def text(self) -> str:
        """The question as a user writes it."""
        return _TEXTS[self.ask].format(self.about)


QUESTIONS: Final = tuple(
    Question(ask, about) for ask in Ask for about in _ARGUMENTS.get(ask, ("",))
)
_BY_TEXT: Final = {question.text: question for question in QUESTIONS}


def parse(text: str) -> Question:
    """The question with exactly this text; raises KeyError for any other."""
    return _BY_TEXT[text]


class Context(NamedTuple):
    """What a follow-up refers to: the shape last named, the last question about one shape."""

    named: str | None = None
    repeated: Ask | None = None  # COLOR or EXISTS

    def defines(self, ask: Ask) -> bool:
        """Whether such a question has a meaning here."""
        missing = {Ask.IT: self.named is None, Ask.AND: self.repeated is None}
        return not missing.get(ask, False)

    def after(self, question: Question, answer: str) -> Context:
        """The context once the question has been asked and answered."""
        words = (*reversed(re.findall(r"\w+", answer)), question.about, self.named)
        named = next((word for word in words if word in KINDS), None)
        if question.ask in (Ask.COLOR, Ask.IT):
            return Context(named, Ask.COLOR)
        return Context(named, Ask.EXISTS if question.ask is Ask.EXISTS else self.repeated)


def answers(scene: Scene, questions: Sequence[Question]) -> list[str]:
    """The right answer to every question of a dialogue; ValueError for one without a meaning."""
    context, given = Context(), []
    for number, question in enumerate(questions, start=1):
        if not context.defines(question.ask):
            raise ValueError(f"question {number} refers to nothing: {question.text}")
        given.append(_answer(scene, context, question, number))
        context = context.after(question, given[-1])
    return given


def _answer(scene: Scene, context: Context, question: Question, number: int) -> str:
    """The answer to the `number`-th question, which has a meaning in its context."""
    match question.ask:
        case Ask.COUNT:
            return NUMBERS[len(scene.shapes) - 1]
        case Ask.WHICH:
            return scene.kind_of(question.about) or NONE
        case Ask.ASKED:
            return NUMBERS[number - 1]
        case Ask.DESCRIBE:
            return describe(scene)
        case Ask.EXISTS:
            return "yes" if scene.color_of(question.about) else "no"
        case Ask.COLOR:
            return scene.color_of(question.about) or NONE
        case Ask.IT:
            assert context.named is not None
            return scene.color_of(context.named) or NONE
        case Ask.AND:
            assert context.repeated is not None
            again = Question(context.repeated, question.about)
            return _answer(scene, context, again, number)


def random_dialogue(
    rng: random.Random,
    scene: Scene,
    weights: Mapping[Ask, float] | None = None,
    turns: int = MAX_TURNS,
) -> list[Question]:
    """Questions about a scene, each with a meaning; `weights` favors kinds."""
    return list(_ask(rng, scene, weights or _USUAL, turns))


def _ask(
    rng: random.Random, scene: Scene, weights: Mapping[Ask, float], turns: int
) -> Iterator[Question]:
    context = Context()
    for number in range(1, turns + 1):
        possible = [ask for ask in Ask if context.defines(ask)]
        ask = rng.choices(possible, [weights[each] for each in possible])[0]
        question = Question(ask, rng.choice(_ARGUMENTS.get(ask, ("",))))
        yield question
        context = context.after(question, _answer(scene, context, question, number))
