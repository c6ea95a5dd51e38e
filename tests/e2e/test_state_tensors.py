"""Rows of different lengths in one pass: what each sequence gets does not depend on who runs beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.speak import error_of, eventually
from tests.e2e.state_server import StateModels
from tests.e2e.steps import HttpLine, Lines, new_id, value
from tests.support.state_models.meter import FIXED_ROWS, LOUD

KEPT = 4  # samples that the meter keeps of a sequence


@pytest.fixture
def meters(state_models: StateModels, lines: Lines) -> list[HttpLine]:
    """As many sequences of the meter as a pass has rows, and two more."""
    model = state_models.named("meter")
    made = [HttpLine(state_models.server, model, new_id()) for _ in range(FIXED_ROWS + 2)]
    for line in made:
        lines.add(line)
    return made


def measured(line: HttpLine, samples: Sequence[float]) -> dict[str, list[float]]:
    """The outputs of one step."""
    answer = line.ask({"inputs": [{"name": "samples", "data": list(samples)}]})
    return {name: value(answer, name) for name in ("loudest", "halves", "window", "rows")}


def chunks(seed: int) -> list[list[float]]:
    """A sequence of chunks, each of its own length."""
    source = random.Random(seed)
    return [
        [source.randrange(-64, 64) / 4 for _ in range(source.randrange(1, 8))] for _ in range(6)
    ]


def check(line: HttpLine, sequence: Sequence[Sequence[float]]) -> None:
    """Steps through a sequence; compares with what it is defined to be."""
    heard: list[float] = []
    for samples in sequence:
        before, heard = heard[-KEPT:], [*heard, *samples]
        outputs = measured(line, samples)
        assert outputs["loudest"] == [max(heard)]
        assert outputs["halves"] == [sample / 2 for sample in samples]
        assert outputs["window"] == [*before, *samples]


def test_chunks_of_all_lengths_run_side_by_side(meters: list[HttpLine]) -> None:
    """Padded on their way in, cut on their way out; states that grow lose their oldest where they are full."""
    sequences = [chunks(seed) for seed in range(len(meters))]
    with ThreadPoolExecutor(len(meters)) as pool:
        list(pool.map(check, meters, sequences))


def test_a_pass_has_the_rows_that_the_program_was_made_for(meters: list[HttpLine]) -> None:
    """Those that no sequence needs are told apart by READY. How many it saw ready is the model's own answer."""
    assert measured(meters[0], [LOUD])["rows"] == [1]

    def some_together() -> bool:
        with ThreadPoolExecutor(FIXED_ROWS) as pool:
            samples = [[LOUD] * length for length in range(1, FIXED_ROWS + 1)]
            answers = list(pool.map(measured, meters, samples))
        rows = [answer["rows"][0] for answer in answers]
        assert all(1 <= count <= FIXED_ROWS for count in rows)
        return max(rows) > 1

    eventually(some_together)


def test_a_free_dimension_takes_any_length_but_none(meters: list[HttpLine]) -> None:
    """Flat or with a leading 1 for the row."""
    line = meters[0]
    for shape in ([3], [1, 3]):
        step = {"inputs": [{"name": "samples", "shape": shape, "data": [1.0, 2.0, 3.0]}]}
        assert value(line.ask(step), "halves") == [0.5, 1.0, 1.5]
    for data in ([], [[1.0], [2.0]], [[1.0, 2.0], [3.0]]):
        refused = line.ask({"inputs": [{"name": "samples", "data": data}]})
        assert error_of(refused) == ("invalid_request", 400)


def test_what_is_hidden_is_given_on_request_alone(meters: list[HttpLine]) -> None:
    """It is an output all the same."""
    step = {"inputs": [{"name": "samples", "data": [1.0, 2.0]}]}
    names = [output["name"] for output in meters[0].ask(step)["outputs"]]
    assert "window_lengths" not in names
    answer = meters[0].ask({**step, "outputs": [{"name": "window_lengths"}]})
    assert value(answer, "window_lengths") == [4]


def test_hello_tells_what_the_model_takes_and_gives(meters: list[HttpLine]) -> None:
    """What clients send and get, under the names of the Open Inference Protocol."""
    hello = meters[0].ask({"type": "hello"})
    assert hello["inputs"] == [{"name": "samples", "datatype": "FP32", "shape": [-1]}]
    assert [tensor["name"] for tensor in hello["outputs"]] == [
        "loudest",
        "halves",
        "window",
        "rows",
    ]
    assert (hello["profile"], hello["limits"]["max_sessions"]) == ("continuous", 8)
