"""Train the shapes model from nothing: `python examples/shapes/train.py --out FOLDER`.

Stages, because everything jointly from scratch gets stuck: the vision tower with a throw-away head that reads each kind's
color, size and place; then, with the tower frozen, the text model on single questions about color and kind; then on
descriptions; then on whole dialogues with and without them, and once more on those in smaller steps.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import AutoTokenizer, LlavaForConditionalGeneration

from blank_model import IMAGE_TOKENS, build_model, build_processor, vocabulary
from descriptions import PLACES, SIZES, is_right
from dialogues import Ask
from lessons import (
    DESCRIBING,
    IGNORED,
    NAMING,
    TALKING,
    Batch,
    Gallery,
    Lesson,
    Writer,
    draw_gallery,
    normalize,
)
from scenes import Scene
from sights import Head, sights


@dataclass(frozen=True)
class Stage:
    """One stage: how long, how many scenes a step, the peak of the learning rate."""

    name: str
    steps: int
    batch: int
    rate: float


SEE: Final = Stage("1 see", 6500, 64, 1.2e-3)
NAME: Final = Stage("2 name", 350, 48, 2e-3)
TELL: Final = Stage("3 tell", 2100, 48, 2e-3)
TALK: Final = Stage("4 talk", 1100, 48, 1.2e-3)
AGAIN: Final = Stage("5 again", 480, 48, 6e-4)
NUM_SCENES: Final = 60_000
HEAVY: Final = 4.0  # the weight in the loss of the words of a size or a place: few and hard among many that are easy
WARM_UP_STEPS: Final = 50


class Trainer:
    """Owns the model while it learns; `rng` decides all that is random but the first weights."""

    def __init__(self, rng: random.Random, num_scenes: int, pace: float) -> None:
        self.model: LlavaForConditionalGeneration = build_model()
        self.processor = build_processor()
        self._rng = rng
        self._pace = pace
        self._writer = Writer(self.processor)
        self._gallery: Gallery = draw_gallery(self.processor, num_scenes, rng)

    def see(self, stage: Stage) -> None:
        """Teach the tower and the projector to show what is in the picture."""
        tower = [self.model.model.vision_tower, self.model.model.multi_modal_projector]
        head, all_sights = Head(), sights(self._gallery.scenes)
        for step in self._steps(stage, [*tower, head]):
            rows = self._some_scenes(stage)
            pixels, truth = normalize(self._gallery.pixels[rows]), all_sights.of(rows)
            if self._rng.random() < 0.5:
                pixels, truth = pixels.flip(-1), truth.mirrored()
            loss, right = head(self._features(pixels), truth)
            step.descend(loss)
            for name, guesses in right.items():
                step.score(name, guesses)

    def look(self) -> Tensor:
        """The frozen tower's image tokens of all scenes, (scenes, IMAGE_TOKENS, hidden)."""
        with torch.no_grad():
            parts = [self._features(normalize(part)) for part in self._gallery.pixels.split(256)]
        return torch.cat(parts)

    def talk(self, stage: Stage, lessons: Mapping[Lesson, float], images: Tensor) -> None:
        """Teach the text model to answer, given the image tokens of all scenes. Each step has one of the lessons."""
        weights = torch.ones(self.model.config.text_config.vocab_size)
        ids = vocabulary()
        weights[[ids[word] for text in (*SIZES, *PLACES) for word in text.split()]] = HEAVY
        for step in self._steps(stage, [self.model.model.language_model, self.model.lm_head]):
            rows = self._some_scenes(stage)
            scenes = [self._gallery.scenes[row] for row in rows]
            (lesson,) = self._rng.choices(list(lessons), list(lessons.values()))
            batch = self._writer.batch(
                self._rng, scenes, [lesson(self._rng, scene) for scene in scenes]
            )
            logits, targets = self._predict(batch, images[rows])
            step.descend(functional.cross_entropy(logits, targets, weights))
            self._score(step, scenes, batch.asks, (logits.argmax(-1), targets))

    def _score(
        self, step: Step, scenes: list[Scene], asks: list[list[Ask]], answers: tuple[Tensor, Tensor]
    ) -> None:
        """Score whole answers, guessed and right; a description in other words may be right, too."""
        guesses, targets = answers
        ends = (targets == self.model.config.eos_token_id).nonzero().flatten() + 1
        about = [(scene, ask) for scene, row in zip(scenes, asks, strict=True) for ask in row]
        pairs = zip(guesses.tensor_split(ends[:-1]), targets.tensor_split(ends[:-1]), strict=True)
        for (scene, ask), (guess, target) in zip(about, pairs, strict=True):
            right = guess.equal(target)
            if ask is Ask.DESCRIBE and not right:
                right = is_right(scene, self.processor.decode(guess[:-1]))
            step.score(ask.value, torch.tensor([right]))

    def _features(self, pixels: Tensor) -> Tensor:
        return torch.stack(list(self.model.get_image_features(pixels).pooler_output))

    def _predict(self, batch: Batch, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and targets of the labelled positions. Padding is on the right: no mask needed."""
        embeds = self.model.get_input_embeddings()(batch.ids)
        is_image = batch.ids == self.model.config.image_token_id
        assert int(is_image.sum()) == len(images) * IMAGE_TOKENS
        embeds = embeds.masked_scatter(is_image.unsqueeze(-1), images)
        hidden = self.model.model.language_model(inputs_embeds=embeds, use_cache=False)[0]
        targets = batch.labels[:, 1:]
        labelled = targets != IGNORED
        return self.model.lm_head(hidden[:, :-1][labelled]), targets[labelled]

    def _some_scenes(self, stage: Stage) -> list[int]:
        return self._rng.sample(range(len(self._gallery.scenes)), stage.batch)

    def _steps(self, stage: Stage, modules: list[nn.Module]) -> Iterator[Step]:
        """The steps of a stage, with a progress bar; only these modules learn."""
        weights = [weight for module in modules for weight in module.parameters()]
        num_steps = max(1, round(stage.steps * self._pace))
        optimizer = torch.optim.AdamW(weights, stage.rate, betas=(0.9, 0.98), weight_decay=0.02)
        step = Step(weights, optimizer)
        with tqdm(range(num_steps), desc=stage.name, unit="step") as bar:
            for number in bar:
                warm_up = min(1.0, (number + 1) / WARM_UP_STEPS)
                cosine = 0.5 * (1 + math.cos(math.pi * number / num_steps))
                optimizer.param_groups[0]["lr"] = stage.rate * warm_up * cosine
                yield step
                bar.set_postfix_str(step.summary(), refresh=False)
                if (number + 1) % 100 == 0:
                    bar.write(f"{stage.name} {number + 1}/{num_steps}: {step.table()}")
                    step.forget()


class Step:
    """One step's work on some weights, and the score since the last table."""

    def __init__(self, weights: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self._weights = weights
        self._optimizer = optimizer
        self._loss = math.nan
        self.forget()

    def descend(self, loss: Tensor) -> None:
        """Change the weights against the gradient."""
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        self._loss = loss.item()

    def score(self, kind: str, right: Tensor) -> None:
        """Count right answers of one kind."""
        self._right[kind] += int(right.sum())
        self._total[kind] += right.numel()

    def summary(self) -> str:
        """Loss and accuracy in a few characters."""
        return f"loss {self._loss:.4f}, {self._right.total() / self._total.total():.1%} right"

    def table(self) -> str:
        """Accuracy by kind of question."""
        order = sorted(self._total)
        return ", ".join(f"{kind} {self._right[kind] / self._total[kind]:.1%}" for kind in order)

    def forget(self) -> None:
        """Start counting anew."""
        self._right: Counter[str] = Counter()
        self._total: Counter[str] = Counter()


def train(seed: int, num_scenes: int, pace: float, start: Path | None) -> Trainer:
    """All stages, one after the other; the same seed gives the same weights on one machine."""
    torch.manual_seed(seed)
    trainer = Trainer(random.Random(seed), num_scenes, pace)
    if start is not None:
        go_on_from(start, trainer.model)
    trainer.see(SEE)
    images = trainer.look()
    trainer.talk(NAME, NAMING, images)
    trainer.talk(TELL, DESCRIBING, images)
    trainer.talk(TALK, TALKING, images)
    trainer.talk(AGAIN, TALKING, images)
    return trainer


def go_on_from(folder: Path, model: LlavaForConditionalGeneration) -> None:
    """Take the weights of a trained model. It may know fewer words: the others start like their small letters, or at random."""
    known = AutoTokenizer.from_pretrained(folder).get_vocab()
    words = {row: known.get(word, known.get(word.lower())) for word, row in vocabulary().items()}
    taken = {row: old for row, old in words.items() if old is not None}
    trained = LlavaForConditionalGeneration.from_pretrained(folder).state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                weight[list(taken)] = trained[name][list(taken.values())]
            else:
                weight.copy_(trained[name])


def save(trainer: Trainer, folder: Path) -> None:
    """Write the model folder next to its place, then move it there: nobody reads half a model."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    trainer.model.save_pretrained(fresh)
    trainer.processor.save_pretrained(fresh)
    for path in fresh.iterdir():
        path.chmod(0o644)  # the weights are written for their owner only
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train the shapes model and save it as a Hugging Face folder.",
        epilog="For a quick look at the stages: --scenes 2000 --pace 0.05.",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write or replace")
    parser.add_argument(
        "--seed", type=int, default=1, help="of weights, scenes and questions (%(default)s)"
    )
    parser.add_argument(
        "--scenes",
        type=int,
        default=NUM_SCENES,
        help="drawn once, asked about again and again (%(default)s)",
    )
    parser.add_argument(
        "--pace", type=float, default=1.0, help="multiplies the steps of every stage (%(default)s)"
    )
    parser.add_argument("--start", type=Path, help="the folder of a trained model to go on from")
    parser.add_argument("--threads", type=int, default=2, help="of torch (%(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train and save."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    start_s = time.monotonic()
    trainer = train(arguments.seed, arguments.scenes, arguments.pace, arguments.start)
    save(trainer, arguments.out)
    minutes = (time.monotonic() - start_s) / 60
    print(f"{arguments.out}: trained in {minutes:.1f} minutes on {arguments.threads} threads")


if __name__ == "__main__":
    main()
