"""Descriptions of a scene in whole sentences, and which of them are right.

A description has the count and the kinds, the size, color and place of each shape, and the kinds that are missing. It is right
if it is complete and all of it is true. Lengths are fractions of the picture's width or height. Near a border, the words on
both sides of it are true:

- A place is a third of the width and a third of the height. The center of the shape may be `SLACK` off.
- `large` is a bounding box of at least `LARGE` of the picture's area. The box may be larger or smaller by a factor of `CLOSE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

from scenes import KINDS, Scene, Shape

WORDS: Final = re.findall(
    r"\w+",
    "describe there is are one two three shape shapes in the picture a and large small at on"
    " top bottom left right middle no rest of white",
)
CAPITALS: Final = ("The", "There")  # the first words of sentences
COUNTS: Final = ("There is one shape", "There are two shapes", "There are three shapes")
SIZES: Final = ("large", "small")
COLUMNS: Final = ("left", "", "right")
ROWS: Final = ("top", "", "bottom")
PLACES: Final = ("at on in", " ".join(ROWS + COLUMNS), "middle")
LARGE: Final = 1 / 8
CLOSE: Final = 1.2
SLACK: Final = 1 / 16


def describe(scene: Scene) -> str:
    """Return the description of a scene."""
    return "".join(options[0] for options in parts(scene))


def is_right(scene: Scene, text: str) -> bool:
    """Return True if a text describes the scene completely, and all of it is true."""
    pattern = "".join(f"({'|'.join(map(re.escape, options))})" for options in parts(scene))
    return re.fullmatch(pattern, text) is not None


def parts(scene: Scene) -> Iterator[tuple[str, ...]]:
    """Yield the parts of a description, each as the texts that are true, the best one first."""
    shapes = sorted(scene.shapes, key=lambda shape: KINDS.index(shape.kind))
    named = [f"a {shape.kind}" for shape in shapes]
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if named[1:] else named)
    yield (f"{COUNTS[len(shapes) - 1]} in the picture, {listed}.",)
    for shape in shapes:
        yield (f" The {shape.kind} is ",)
        yield sizes(scene, shape)
        yield (f" and {shape.color}, ",)
        places = product(rows(scene, shape), columns(scene, shape))
        yield tuple(f"{_place(row, column)}." for row, column in places)
    missing = [f"there is no {kind}" for kind in KINDS if scene.color_of(kind) is None]
    if missing:
        yield (" " + ", and ".join(missing).capitalize() + ".",)
    yield (" The rest of the picture is white.",)


def sizes(scene: Scene, shape: Shape) -> tuple[str, ...]:
    """Return the true ones of `SIZES`, the best one first."""
    share = shape.size**2 / (scene.width * scene.height)
    words = SIZES if share >= LARGE else SIZES[::-1]
    return words if LARGE / CLOSE < share < LARGE * CLOSE else words[:1]


def columns(scene: Scene, shape: Shape) -> tuple[str, ...]:
    """Return the true ones of `COLUMNS`, the best one first."""
    return _thirds((shape.left + shape.size / 2) / scene.width, COLUMNS)


def rows(scene: Scene, shape: Shape) -> tuple[str, ...]:
    """Return the true ones of `ROWS`, the best one first."""
    return _thirds((shape.top + shape.size / 2) / scene.height, ROWS)


def _thirds(center: float, names: tuple[str, ...]) -> tuple[str, ...]:
    own = min(int(center * 3), 2)
    low, high = int((center - SLACK) * 3), int((center + SLACK) * 3)
    return (names[own], *(name for name in names[max(low, 0) : high + 1] if name != names[own]))


def _place(row: str, column: str) -> str:
    if row:
        return f"at the {row} {column}".rstrip()
    return f"on the {column}" if column else "in the middle"
