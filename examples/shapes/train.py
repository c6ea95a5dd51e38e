"""Train the shapes model from nothing: `python examples/shapes/train.py --out FOLDER`.

Stages, because everything jointly from scratch gets stuck: the vision tower with a throw-away head
that names each kind's color; then, with the tower frozen, the text model on single questions about
color and kind; then on whole dialogues, and once more on those in smaller steps.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import LlavaForConditionalGeneration

from blank_model import IMAGE_TOKENS, TEXT_WIDTH, build_model, build_processor
from dialogues import Question
from lessons import (
    IGNORED,
    Batch,
    Gallery,
    Writer,
    draw_gallery,
    mixed_questions,
    normalize,
    single_questions,
)
from scenes import COLORS, KINDS, Scene

Dialogue = Callable[[random.Random, Scene], list[Question]]


@dataclass(frozen=True)
class Stage:
    """One stage: how long, how many scenes a step, the peak of the learning rate."""

    name: str
    steps: int
    batch: int
    rate: float


SEE: Final = Stage("1 see", 2400, 64, 1.5e-3)
NAME: Final = Stage("2 name", 350, 48, 2e-3)
TALK: Final = Stage("3 talk", 1100, 48, 1.2e-3)
AGAIN: Final = Stage("4 again", 480, 48, 6e-4)
NUM_SCENES: Final = 30_000
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
        """Teach the tower and the projector to show the color of each kind."""
        tower = [self.model.model.vision_tower, self.model.model.multi_modal_projector]
        head = nn.Linear(TEXT_WIDTH, len(KINDS) * (len(COLORS) + 1))
        truth = self._gallery.colors()
        for step in self._steps(stage, [*tower, head]):
            rows = self._some_scenes(stage)
            pixels = normalize(self._gallery.pixels[rows])
            if self._rng.random() < 0.5:
                pixels = pixels.flip(-1)  # mirrored, every shape stays what it is
            guess = head(self._features(pixels).mean(1)).view(len(rows), len(KINDS), -1)
            loss = functional.cross_entropy(guess.flatten(0, 1), truth[rows].flatten())
            step.descend(loss)
            step.score("color", guess.argmax(-1) == truth[rows])

    def look(self) -> Tensor:
        """The frozen tower's image tokens of all scenes, (scenes, IMAGE_TOKENS, hidden)."""
        with torch.no_grad():
            parts = [self._features(normalize(part)) for part in self._gallery.pixels.split(256)]
        return torch.cat(parts)

    def talk(self, stage: Stage, dialogue: Dialogue, images: Tensor) -> None:
        """Teach the text model to answer, given the image tokens of all scenes."""
        for step in self._steps(stage, [self.model.model.language_model, self.model.lm_head]):
            rows = self._some_scenes(stage)
            scenes = [self._gallery.scenes[row] for row in rows]
            dialogues = [dialogue(self._rng, scene) for scene in scenes]
            batch = self._writer.batch(self._rng, scenes, dialogues)
            logits, targets = self._predict(batch, images[rows])
            step.descend(functional.cross_entropy(logits, targets))
            right = (logits.argmax(-1) == targets)[::2]  # every other target is an answer's end
            kinds = [ask for asks in batch.asks for ask in asks]
            for ask, is_right in zip(kinds, right, strict=True):
                step.score(ask.value, is_right)

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


def train(seed: int, num_scenes: int, pace: float) -> Trainer:
    """All stages, one after the other; the same seed gives the same weights on one machine."""
    torch.manual_seed(seed)
    trainer = Trainer(random.Random(seed), num_scenes, pace)
    trainer.see(SEE)
    images = trainer.look()
    trainer.talk(NAME, single_questions, images)
    trainer.talk(TALK, mixed_questions, images)
    trainer.talk(AGAIN, mixed_questions, images)
    return trainer


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
        epilog="The defaults take less than 30 minutes on two cores. The weights in examples/shapes/model had 1.4 times the"
        " dialogues and 2.3 times the pictures: for such ones, --pace 2. For a quick look at the stages:"
        " --scenes 2000 --pace 0.05.",
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
    parser.add_argument("--threads", type=int, default=2, help="of torch (%(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train and save."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    start_s = time.monotonic()
    trainer = train(arguments.seed, arguments.scenes, arguments.pace)
    save(trainer, arguments.out)
    minutes = (time.monotonic() - start_s) / 60
    print(f"{arguments.out}: trained in {minutes:.1f} minutes on {arguments.threads} threads")


if __name__ == "__main__":
    main()
