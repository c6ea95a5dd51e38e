"""What the model is trained on: drawn scenes and transcripts of dialogues about them.

Owns how a transcript becomes token ids and labels (the same ids that the chat template gives) and
how varied users are imitated. Knows nothing of optimizers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import LlavaProcessor

from blank_model import ASSISTANT, BEGIN, END, IMAGE, IMAGE_TOKENS, PAD, SYSTEM, UNKNOWN, USER
from dialogues import MAX_TURNS, Ask, Question, answers, random_dialogue
from scenes import (
    COLORS,
    KINDS,
    MAX_SIDE,
    MIN_SIDE,
    PALETTE,
    SEEN_SIDE,
    Rgb,
    Scene,
    draw,
    random_canvas,
    random_scene,
    random_side,
)

Lesson = Callable[[random.Random, Scene], list[Question]]

IGNORED: Final = -100  # the label of a token that the model need not predict

# The model need not obey a system prompt, only not be confused by one.
SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "Answer in one word.",
    "You answer questions about shapes.",
    "Look at the picture, and answer with a single word: a color, a shape or a number.",
    "You are a friendly teacher. What you see is a picture with one, two or three shapes.",
)
# Weights of the kinds of questions in the last stage: what is learned last is asked most.
MIX: Final[Mapping[Ask, float]] = {
    Ask.COUNT: 1,
    Ask.COLOR: 2,
    Ask.WHICH: 2,
    Ask.EXISTS: 1,
    Ask.IT: 8,
    Ask.AND: 3,
    Ask.ASKED: 1.5,
    Ask.DESCRIBE: 0,
}


class Gallery(NamedTuple):
    """Scenes and what the processor's resize leaves of them."""

    scenes: list[Scene]
    pixels: Tensor  # uint8, (scenes, 3, SEEN_SIDE, SEEN_SIDE)


class Batch(NamedTuple):
    """Transcripts padded on the right; labels are those of the same position's token."""

    ids: Tensor  # (rows, length)
    labels: Tensor  # (rows, length), IGNORED but for answers and their ends
    asks: list[list[Ask]]  # per row, the kind of each question


def normalize(pixels: Tensor) -> Tensor:
    """Pixel values 0 to 255 as the processor rescales and normalizes them, to -1 to 1."""
    return pixels.float() / 127.5 - 1


def draw_gallery(processor: LlavaProcessor, count: int, rng: random.Random) -> Gallery:
    """Random scenes on canvases of any size, in slightly varied colors."""
    pixels = np.empty((count, 3, SEEN_SIDE, SEEN_SIDE), dtype=np.uint8)
    scenes = []
    for index in tqdm(range(count), desc="drawing", unit="scene"):
        scene = random_scene(rng, _canvas(rng))
        image = draw(scene, {name: _shade(rng, color) for name, color in PALETTE.items()})
        seen = processor.image_processor(image, do_rescale=False, do_normalize=False)
        pixels[index] = seen["pixel_values"][0]
        scenes.append(scene)
    return Gallery(scenes, torch.from_numpy(pixels))


def _canvas(rng: random.Random) -> tuple[int, int]:
    """Mostly the proportions of pictures, which are learned first, but slim ones often enough."""
    match rng.choices(("picture", "any", "slim"), (5, 3, 2))[0]:
        case "any":
            return random_canvas(rng)
        case "picture":
            side = random_side(rng)
            return side, random_side(rng, max(MIN_SIDE, side // 2), min(MAX_SIDE, side * 2))
    long = random_side(rng, 4 * MIN_SIDE)
    slim = long, random_side(rng, MIN_SIDE, long // 4)
    return slim if rng.random() < 0.5 else slim[::-1]


def _shade(rng: random.Random, color: Rgb) -> Rgb:
    red, green, blue = (min(255, max(0, value + rng.randint(-30, 30))) for value in color)
    return red, green, blue


class Writer:
    """Writes transcripts as token ids; keeps the ids of every text that it has met."""

    def __init__(self, processor: LlavaProcessor) -> None:
        self._tokenizer = processor.tokenizer
        self._known: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """The token ids of a text, the caller's to read only."""
        if text not in self._known:
            self._known[text] = self._tokenizer(text)["input_ids"]
        return self._known[text]

    def transcript(
        self,
        questions: Sequence[str],
        replies: Sequence[str],
        system: str | None = None,
        image_first: bool = True,
    ) -> tuple[list[int], list[int]]:
        """Token ids and labels of a whole dialogue, as the chat template renders it."""
        ids = self.ids(BEGIN)[:]
        if system is not None:
            ids += self.ids(SYSTEM) + self.ids(system) + self.ids(END)
        labels = [IGNORED] * len(ids)
        image = self.ids(IMAGE) * IMAGE_TOKENS
        for question, reply in zip(questions, replies, strict=True):
            words = self.ids(question)
            words = image + words if image_first else words + image
            asked = self.ids(USER) + words + self.ids(END) + self.ids(ASSISTANT)
            answered = self.ids(reply) + self.ids(END)
            ids += asked + answered
            labels += [IGNORED] * len(asked) + answered
            image = []
        return ids, labels

    def batch(
        self, rng: random.Random, scenes: Sequence[Scene], dialogues: Sequence[Sequence[Question]]
    ) -> Batch:
        """One transcript for each scene, with the habits of varied users."""
        rows = []
        instructed = rng.random() < 0.3  # all of a batch or none: one long row would pad all others
        for scene, questions in zip(scenes, dialogues, strict=True):
            texts = [_vary(rng, question.text) for question in questions]
            system = _system_prompt(rng) if instructed else None
            image_first = rng.random() < 0.9
            rows.append(self.transcript(texts, answers(scene, questions), system, image_first))
        length = max(len(ids) for ids, _ in rows)
        (pad,) = self.ids(PAD)
        return Batch(
            torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in rows]),
            torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in rows]),
            [[question.ask for question in questions] for questions in dialogues],
        )


def single_questions(rng: random.Random, scene: Scene) -> list[Question]:
    """The easiest dialogue: the color of each kind, or else the kind of each color.

    Never both: an earlier answer would give the later one away, and the model would learn to look
    there instead of at the image.
    """
    del scene  # every scene is asked the same
    if rng.random() < 0.5:
        return [Question(Ask.COLOR, kind) for kind in rng.sample(KINDS, len(KINDS))]
    return [Question(Ask.WHICH, color) for color in rng.sample(COLORS, len(COLORS))]


def mixed_questions(rng: random.Random, scene: Scene) -> list[Question]:
    """A dialogue of full length with every kind of question."""
    return random_dialogue(rng, scene, MIX)


def description(rng: random.Random, scene: Scene) -> list[Question]:
    """A description alone."""
    del rng, scene  # there is nothing to choose
    return [Question(Ask.DESCRIBE)]


def described_once(rng: random.Random, scene: Scene) -> list[Question]:
    """A dialogue of full length with one description, wherever it is."""
    questions = mixed_questions(rng, scene)
    questions.insert(rng.randrange(MAX_TURNS), Question(Ask.DESCRIBE))
    return questions[:MAX_TURNS]


# How often each lesson is chosen. A batch has one: a long transcript among short ones would pad all of them.
NAMING: Final[Mapping[Lesson, float]] = {single_questions: 1}
DESCRIBING: Final[Mapping[Lesson, float]] = {description: 0.8, single_questions: 0.2}
TALKING: Final[Mapping[Lesson, float]] = {
    mixed_questions: 0.45,
    described_once: 0.3,
    description: 0.25,
}


def _vary(rng: random.Random, text: str) -> str:
    """Return the question as some users write it: without its mark, with another, after an unknown word, in capitals."""
    match rng.randrange(20):
        case 0 | 1:
            return text.rstrip("?.")
        case 2:
            return text.replace("?", ".")
        case 3:
            return f"{UNKNOWN}, {text}"
        case 4:
            return text.title()
        case _:
            return text


def _system_prompt(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(SYSTEM_PROMPTS)
    return " ".join([UNKNOWN] * rng.randint(1, 30))
