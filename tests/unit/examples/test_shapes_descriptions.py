"""The descriptions of the shapes example: which are right, what the tower learns of them, and how the model gives them."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blank_model import build_tokenizer
from descriptions import (
    COLUMNS,
    LARGE,
    ROWS,
    SIZES,
    SLACK,
    columns,
    describe,
    is_right,
    rows,
    sizes,
)
from dialogues import Ask, Question, answers, parse
from evaluate import MODEL, Model
from scenes import COLORS, DEMO, KINDS, Scene, Shape, random_scene
from sights import FACTS, sights

DESCRIBE = Question(Ask.DESCRIBE)
DEMO_TEXT = (
    "There are three shapes in the picture, a circle, a square and a triangle. "
    "The circle is small and red, at the top left. "
    "The square is small and blue, at the top right. "
    "The triangle is small and yellow, at the bottom. "
    "The rest of the picture is white."
)
BLUE_SQUARE = Scene(100, 100, (Shape("square", "blue", 10, 30, 40),))
BLUE_SQUARE_TEXT = (
    "There is one shape in the picture, a square. The square is large and blue, on the left. "
    "There is no circle, and there is no triangle. The rest of the picture is white."
)

SOME = 1e-6  # more than what rounding leaves of nothing
seeds = st.integers(0, 2**32)


def square(left: int, top: int, size: int) -> Scene:
    """A blue square on a canvas of 1,000 pixels a side."""
    return Scene(1000, 1000, (Shape("square", "blue", left, top, size),))


class TestRightDescriptions:
    """Texts and the scenes that they describe."""

    @pytest.mark.parametrize(
        ("scene", "text"), [(DEMO, DEMO_TEXT), (BLUE_SQUARE, BLUE_SQUARE_TEXT)]
    )
    def test_a_scene_is_described(self, scene: Scene, text: str) -> None:
        """A description has every shape with size, color and place, and the kinds that are missing."""
        assert describe(scene) == text
        assert is_right(scene, text)

    @given(seeds)
    def test_a_description_is_right_and_has_a_readable_length(self, seed: int) -> None:
        """The description of any scene is right, and has 30 to 60 words."""
        scene = random_scene(random.Random(seed))
        assert is_right(scene, describe(scene))
        assert 30 <= len(describe(scene).split()) <= 60

    @pytest.mark.parametrize(
        ("true", "false"),
        [
            ("three shapes", "two shapes"),
            ("a circle, a", "a"),
            ("red", "blue"),
            ("at the top left", "at the top"),
            ("at the top right", "on the right"),
            ("The circle is small", "The circle is large"),
            (" The rest of the picture is white.", ""),
            ("a triangle. ", "a triangle. There is no square. "),
        ],
    )
    def test_one_wrong_word_makes_it_wrong(self, true: str, false: str) -> None:
        """A text with a wrong, a missing or a further statement is not right."""
        assert true in DEMO_TEXT
        assert not is_right(DEMO, DEMO_TEXT.replace(true, false, 1))

    @pytest.mark.parametrize(
        ("off", "places"),
        [
            (-SLACK * 1.1, {"on the left"}),
            (-SLACK * 0.9, {"on the left", "in the middle"}),
            (SLACK * 0.9, {"on the left", "in the middle"}),
            (SLACK * 1.1, {"in the middle"}),
        ],
    )
    def test_near_a_border_both_places_are_right(self, off: float, places: set[str]) -> None:
        """Within the slack of a third, the places on both sides are true; beyond it, one."""
        scene = square(round(1000 * (1 / 3 + off)) - 50, 450, 100)
        text = describe(scene)
        (own,) = (place for place in ("on the left", "in the middle") if place in text)
        found = {
            place
            for place in ("on the left", "in the middle", "on the right", "at the top left")
            if is_right(scene, text.replace(own, place))
        }
        assert found == places

    @pytest.mark.parametrize(
        ("share", "words"),
        [
            (LARGE / 1.3, {"small"}),
            (LARGE / 1.1, {"small", "large"}),
            (LARGE * 1.1, {"small", "large"}),
            (LARGE * 1.3, {"large"}),
        ],
    )
    def test_near_a_border_both_sizes_are_right(self, share: float, words: set[str]) -> None:
        """Close to the share of the picture from which a shape is large, it may be small as well."""
        scene = square(300, 300, round(1000 * share**0.5))
        text = describe(scene)
        own = "large" if "large" in text else "small"
        assert {
            word for word in ("small", "large") if is_right(scene, text.replace(own, word))
        } == words


class TestLessons:
    """What the model learns of descriptions."""

    @given(seeds)
    def test_the_tower_learns_what_is_true(self, seed: int) -> None:
        """Only words that a description may say are probable, and some are of each shape that is there."""
        scene = random_scene(random.Random(seed))
        for kind, facts in zip(KINDS, sights([scene]).facts[0], strict=True):
            color, *others = facts.split(tuple(FACTS.values()))
            shape = next((shape for shape in scene.shapes if shape.kind == kind), None)
            if shape is None:
                assert color.tolist() == [0, 0, 0, 0, 1]
                assert not torch.cat(others).any()
                continue
            assert COLORS[int(color.argmax())] == shape.color
            true = (sizes(scene, shape), rows(scene, shape), columns(scene, shape))
            for probable, names, words in zip(others, (SIZES, ROWS, COLUMNS), true, strict=True):
                likely = {name for name, each in zip(names, probable, strict=True) if each > SOME}
                assert likely
                assert likely <= set(words)

    def test_a_mirrored_picture_has_other_columns(self) -> None:
        """What is on the left of a picture is on the right of the mirrored one."""
        scenes = [square(50, 300, 200), square(750, 300, 200)]
        left, right = sights(scenes).facts
        mirrored = sights(scenes).mirrored().facts
        assert not left.equal(right)
        assert mirrored[0].equal(right)
        assert mirrored[1].equal(left)

    @given(seeds)
    def test_descriptions_survive_the_tokenizer(self, seed: int) -> None:
        """A description is known words alone, and decodes to itself, capitals included."""
        tokenizer = build_tokenizer()
        text = describe(random_scene(random.Random(seed)))
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text

    def test_it_is_the_shape_named_last(self) -> None:
        """After a description, `it` is the kind named last in it; the question about one shape stays the same."""
        texts = ("Is there a circle?", "Describe the picture.", "What color is it?")
        assert answers(DEMO, [parse(text) for text in texts])[-1] == "yellow"
        again = ("What color is the circle?", "Describe the picture.", "And the square?")
        assert answers(DEMO, [parse(text) for text in again])[-1] == "blue"


class TestModel:
    """The trained model."""

    def test_fresh_scenes_are_described(self) -> None:
        """Fresh scenes get right descriptions."""
        rng = random.Random("fresh descriptions")
        scenes = [random_scene(rng) for _ in range(24)]
        outcomes = list(Model(MODEL).converse(scenes, [[DESCRIBE]] * len(scenes)))
        assert sum(outcome.is_right for outcome in outcomes) >= 22

    def test_a_dialogue_goes_on_after_a_description(self) -> None:
        """A description counts as a question, and later questions are answered."""
        texts = ("What color is the circle?", "Describe the picture.", "And the triangle?")
        questions = [*map(parse, texts), parse("How many questions have I asked?")]
        outcomes = list(Model(MODEL).converse([DEMO], [questions]))
        assert all(outcome.is_right for outcome in outcomes)
        assert outcomes[-1].said == "four"
