"""Labelled scenes: one to three colored shapes on a white canvas, and how to draw them.

`python examples/shapes/scenes.py --out FOLDER` writes some as pictures with a file of labels.

Owns what a scene is and which scenes are drawn at random. Knows nothing of questions, models or
processors but one number: the side in pixels to which the model's processor resizes a canvas.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

Rgb = tuple[int, int, int]

KINDS: Final = ("circle", "square", "triangle")
COLORS: Final = ("red", "green", "blue", "yellow")
PALETTE: Final[Mapping[str, Rgb]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 205, 40),
}
WHITE: Final = (255, 255, 255)

MIN_SIDE: Final = 64
MAX_SIDE: Final = 1024
SEEN_SIDE: Final = 64  # the processor's output, in pixels
MIN_SEEN: Final = 12  # a shape smaller than this after the resize has no recognizable outline


@dataclass(frozen=True)
class Shape:
    """One shape; `left`, `top` and `size` are its square bounding box in pixels."""

    kind: str
    color: str
    left: int
    top: int
    size: int

    def apart(self, other: Shape, gap: int) -> bool:
        """Whether at least `gap` pixels lie between the two bounding boxes."""
        return (
            self.left + self.size + gap <= other.left
            or other.left + other.size + gap <= self.left
            or self.top + self.size + gap <= other.top
            or other.top + other.size + gap <= self.top
        )


@dataclass(frozen=True)
class Scene:
    """A white canvas of `width` x `height` pixels with shapes of different kinds and colors."""

    width: int
    height: int
    shapes: tuple[Shape, ...]

    def color_of(self, kind: str) -> str | None:
        """The color of the shape of that kind, None if there is none."""
        return next((shape.color for shape in self.shapes if shape.kind == kind), None)

    def kind_of(self, color: str) -> str | None:
        """The kind of the shape of that color, None if there is none."""
        return next((shape.kind for shape in self.shapes if shape.color == color), None)


DEMO: Final = Scene(
    320,
    240,
    (
        Shape("circle", "red", 24, 30, 88),
        Shape("square", "blue", 196, 22, 80),
        Shape("triangle", "yellow", 118, 128, 92),
    ),
)


def random_scene(rng: random.Random, canvas: tuple[int, int] | None = None) -> Scene:
    """A scene with random contents, on a random canvas if (width, height) is not given."""
    width, height = random_canvas(rng) if canvas is None else canvas
    for side in (width, height):
        if not MIN_SIDE <= side <= MAX_SIDE:
            raise ValueError(f"a canvas side is {MIN_SIDE} to {MAX_SIDE} pixels, not {side}")
    count = rng.randint(1, len(KINDS))
    kinds, colors = rng.sample(KINDS, count), rng.sample(COLORS, count)
    while True:  # sizes that leave no room are drawn anew
        shapes = _place(rng, width, height, list(zip(kinds, colors, strict=True)))
        if shapes is not None:
            return Scene(width, height, shapes)


def random_canvas(rng: random.Random) -> tuple[int, int]:
    """Width and height in pixels, each by itself, so proportions are anything up to 1 : 16."""
    return random_side(rng), random_side(rng)


def random_side(rng: random.Random, low: int = MIN_SIDE, high: int = MAX_SIDE) -> int:
    """A side in pixels, as likely between 64 and 128 as between 512 and 1,024."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def size_range(width: int, height: int) -> tuple[int, int]:
    """The smallest and the largest shape for a canvas, in pixels.

    The resize shrinks the longer side most, so that one sets the smallest size; on a canvas too
    slim for it shapes fill most of the shorter side.
    """
    short, long = min(width, height), max(width, height)
    smallest = min(math.ceil(long * MIN_SEEN / SEEN_SIDE), short * 3 // 4)
    largest = min(short * 9 // 10, max(short * 9 // 20, smallest * 3 // 2))
    return smallest, largest


def draw(scene: Scene, palette: Mapping[str, Rgb] = PALETTE) -> Image.Image:
    """The scene as an RGB image."""
    image = Image.new("RGB", (scene.width, scene.height), WHITE)
    pen = ImageDraw.Draw(image)
    for shape in scene.shapes:
        right, bottom = shape.left + shape.size - 1, shape.top + shape.size - 1
        box, fill = (shape.left, shape.top, right, bottom), palette[shape.color]
        match shape.kind:
            case "circle":
                pen.ellipse(box, fill=fill)
            case "square":
                pen.rectangle(box, fill=fill)
            case "triangle":
                top = ((shape.left + right) / 2, shape.top)
                pen.polygon([top, (right, bottom), (shape.left, bottom)], fill=fill)
            case _:
                raise ValueError(f"no such kind of shape: {shape.kind}")
    return image


def _place(
    rng: random.Random, width: int, height: int, labels: list[tuple[str, str]]
) -> tuple[Shape, ...] | None:
    """Shapes of random place and size, None if one found no room in a few tries."""
    gap = math.ceil(max(width, height) / SEEN_SIDE)  # at least a pixel of white after the resize
    smallest, largest = size_range(width, height)
    placed: list[Shape] = []
    for kind, color in labels:
        for _ in range(20):
            size = rng.randint(smallest, largest)
            left, top = rng.randint(0, width - size), rng.randint(0, height - size)
            shape = Shape(kind, color, left, top, size)
            if all(shape.apart(other, gap) for other in placed):
                placed.append(shape)
                break
        else:
            return None
    return tuple(placed)


def main() -> None:
    """Write pictures and their labels into a folder."""
    parser = argparse.ArgumentParser(
        description="Draw labelled scenes: 0000.png, 0001.png, ... and labels.json, which has the "
        "canvas and each shape's kind, color and bounding box (left, top, size) in pixels."
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder, made if need be")
    parser.add_argument("--count", type=int, default=10, help="how many scenes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, others (%(default)s)")
    parser.add_argument(
        "--canvas",
        type=int,
        nargs=2,
        metavar=("WIDTH", "HEIGHT"),
        help=f"pixels, {MIN_SIDE} to {MAX_SIDE} each; random for every scene if left out",
    )
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    scenes = [random_scene(rng, arguments.canvas) for _ in range(arguments.count)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes):
        draw(scene).save(arguments.out / f"{number:04}.png")
    labels = json.dumps([asdict(scene) for scene in scenes], indent=1)
    (arguments.out / "labels.json").write_text(labels + "\n")


if __name__ == "__main__":
    main()
