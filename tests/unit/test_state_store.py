"""Sequences in a store: an engine that dies at any moment is followed by one that goes on, and no step counts twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.harness import Clock
from tests.support.state_harness import StateHarness, state_settings
from ts_stateful.protocol import Close, Fork, InputTensor, Open, Request, Step
from ts_stateful.state.commits import scope_of
from ts_stateful.store.base import StoreUnavailable
from ts_stateful.store.memory import MemoryStore

NUMBERS = (3, 1, 4, 1, 5, 9, 2)
BAD = 13  # a number that the model does not survive
EVERY = pytest.mark.parametrize("every", [1, 3])


class Killed(BaseException):
    """The engine is gone, in the middle of something."""


class MortalStore(MemoryStore):
    """A store whose users die before, or behind, one of its calls; or that is out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.num_left: int | None = None
        self.fails = False

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        self._live()
        made = super().create(key, data, ttl_s)
        self._live()
        if self.fails:
            raise StoreUnavailable("the store is out of order", "wait")
        return made

    def list(self, prefix: str) -> Sequence[str]:
        self._live()
        return super().list(prefix)

    def delete(self, prefix: str) -> None:
        self._live()
        super().delete(prefix)

    def _live(self) -> None:
        if self.num_left is not None:
            self.num_left -= 1
            if self.num_left < 0:
                self.num_left = None
                raise Killed


def model(number: Tensor, start: Tensor, total: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """A running sum, the numbers so far, and whether this was the first."""
    if bool((number == BAD).any()):
        raise ValueError("13")
    total, seen = total + number, torch.cat([seen, number], dim=1)
    return total, seen, start, total, seen


def settings(every: int, **handler: Any) -> Any:
    """What the model declares."""
    growing = {"datatype": "INT64", "shape": [-1]}
    return state_settings(
        inputs=[
            {"name": "number", "datatype": "INT64", "shape": [1], "raw": "text"},
            {"name": "start", "datatype": "BOOL", "control": "start"},
        ],
        outputs=[
            {"name": "sum", "datatype": "INT64", "shape": [1], "raw": "text"},
            {"name": "numbers", **growing},
            {"name": "first", "datatype": "BOOL"},
        ],
        states=[
            {"name": "total", "datatype": "INT64", "shape": [1]},
            {"name": "seen", "max": 32, **growing},
        ],
        commitEvery=every,
        **handler,
    )


@pytest.fixture
def store() -> MortalStore:
    """What outlives the engines."""
    return MortalStore()


Start = Callable[..., StateHarness]


@pytest.fixture
def start(store: MortalStore) -> Start:
    """Starts an engine; they share a clock, the store, and the names of requests."""
    shared: dict[str, Any] = {"store": store, "clock": Clock(), "numbers": count(1)}

    def engine(every: int = 1, **options: Any) -> StateHarness:
        initial = [
            torch.zeros(1, 1, dtype=torch.int64),
            torch.zeros(1, 0, dtype=torch.int64),
        ]
        declared = settings(every, **options.pop("handler", {}))
        return StateHarness(model, declared, initial=initial, **shared, **options)

    return engine


def add(number: int, session_id: str = "a", **fields: Any) -> Step:
    """A step of the model."""
    return Step(session_id=session_id, inputs=(InputTensor("number", [number]),), **fields)


def total(answer: dict[str, Any]) -> int:
    """The sum in an answer."""
    assert "error" not in answer, answer
    return int(answer["outputs"][0]["data"][0])


def code(answer: dict[str, Any]) -> str:
    """The error in an answer."""
    return str(answer["error"]["code"])


@EVERY
def test_another_engine_goes_on_where_the_last_one_stood(every: int, start: Start) -> None:
    """The states of all steps are there, whichever of them were committed."""
    answers: list[dict[str, Any]] = []
    for number in NUMBERS:
        answers.append(start(every).ask(add(number), opens=not answers))
    assert [total(answer) for answer in answers] == [sum(NUMBERS[: i + 1]) for i in range(7)]
    assert [answer["turn"] for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert answers[-1]["outputs"][1]["data"] == list(NUMBERS)
    assert [answer["outputs"][2]["data"] for answer in answers] == [[True]] + [[False]] * 6


SCRIPT: Sequence[Request] = [
    *[add(number) for number in NUMBERS],
    add(7, end=True),
    add(1),
    add(2, turn=2),
    add(5, start=True),
    Fork(session_id="a", new_session_id="b"),
    add(6),
    add(8, "b", end=True),
    Close(session_id="a"),
    add(4),
]
BEGIN = (0, 8, 15)  # the worker knows no sequence of that id before these


def talk(
    start: Start, script: Sequence[Request], every: int, at_once: int
) -> tuple[list[dict[str, Any]], bool]:
    """The answers to the script, and whether the engine died: the worker sends again what was not answered then."""
    harness, died = start(every), False
    answers: dict[int, dict[str, Any]] = {}
    for first in range(0, len(script), at_once):
        batch = range(first, min(first + at_once, len(script)))
        sent = {harness.submit(script[i], opens=i in BEGIN): i for i in batch}
        while True:
            try:
                harness.run()
            except Killed:
                died = True
            answers |= {sent[r]: harness.answer(r) for r in sent if r in harness.events}
            missing = {r: i for r, i in sent.items() if i not in answers}
            if not missing:
                break
            harness = start(every)
            for request_id, i in missing.items():
                harness.submit(script[i], opens=i in BEGIN, again=request_id)
    return [without_times(answers[i]) for i in range(len(script))], died


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """What an answer says."""
    return {key: value for key, value in answer.items() if key != "replayed"}


@EVERY
@pytest.mark.parametrize(("length", "at_once"), [(16, 1), (11, 4)])
def test_no_step_is_lost_or_counts_twice_whenever_an_engine_dies(
    every: int, length: int, at_once: int, start: Start, store: MortalStore
) -> None:
    """Steps, END, what follows it, START, a fork, a close: every answer is that of an engine that lives."""
    script = SCRIPT[:length]  # the first 11 are steps of one sequence
    expected, _ = talk(start, script, every, at_once)
    sums = {6: 25, 7: 32, 9: 3, 10: 5, 12: 11, 13: 13, 15: 4}
    assert all(total(expected[i]) == found for i, found in sums.items() if i < length)
    died, num_deaths = True, 0
    while died:
        store.delete("states-model")
        store.num_left = num_deaths
        answers, died = talk(start, script, every, at_once)
        store.num_left = None
        assert answers == expected, num_deaths
        num_deaths += 1
    assert num_deaths > length


@EVERY
def test_what_is_not_needed_is_removed(every: int, start: Start, store: MortalStore) -> None:
    """Beside the last commit there are the steps since then; behind END its answer, behind a close nothing."""
    harness = start(every)
    for number in NUMBERS:
        harness.ask(add(number))
        assert len(store.list("states-model/a")) <= every + 1
    harness.ask(add(1, end=True))
    assert len(store.list("states-model/a")) == 1
    harness.ask(add(1, "b"))
    harness.ask(Close(session_id="b"))
    assert not store.list("states-model/b")
    harness.ask(add(1, "c"))
    harness.clock.now += harness.engine.table.get("c").idle_s
    harness.engine.tick()
    harness.run()
    assert not store.list("states-model/c")
    assert code(start(every).ask(add(1, "c"), opens=False)) == "session_not_found"


def test_a_step_that_could_not_be_written_is_taken_back(start: Start, store: MortalStore) -> None:
    """It can be sent again, whether or not the store had it; nobody else notices."""
    harness = start(3)
    assert total(harness.ask(add(1))) == 1
    store.fails = True
    assert code(harness.ask(add(2))) == "store_unavailable"
    store.fails = False
    assert harness.engine.figures().store_failures == 1
    assert [total(harness.ask(add(2), opens=False)) for _ in range(3)] == [3, 5, 7]
    assert total(start(3).ask(add(1))) == 8


def test_with_best_effort_a_sequence_goes_on_without_the_store(
    start: Start, store: MortalStore
) -> None:
    """What was missed is made up for with the next step."""
    harness = start(100, handler={"store": {"policy": "best_effort"}})
    assert total(harness.ask(add(1))) == 1
    store.fails = True
    assert [total(harness.ask(add(1))) for _ in range(2)] == [2, 3]
    store.fails = False
    assert total(harness.ask(add(1))) == 4
    assert total(start(100).ask(add(1))) == 5


def test_a_sequence_goes_on_in_one_place(start: Start) -> None:
    """Who lags behind is told so, and then goes on from what the other one has done."""
    first, second = start(), start()
    assert total(first.ask(add(1))) == 1
    assert [total(second.ask(add(1))) for _ in range(4)] == [2, 3, 4, 5]
    assert code(first.ask(add(1))) == "session_moved"
    assert total(first.ask(add(1))) == 6


@pytest.mark.parametrize("num_steps", [1, 4])
def test_what_was_left_behind_expires_alone(num_steps: int, start: Start) -> None:
    """A sequence stays for the engine that goes on with it."""
    left, other = start(3), start(3)
    left.ask(add(1))
    left.clock.now += left.engine.table.get("a").idle_s / 2
    for _ in range(num_steps):
        answer = other.ask(add(1), opens=False)
    left.clock.now += left.engine.table.get("a").idle_s / 2
    left.engine.tick()
    left.run()
    assert "a" not in left.engine.table
    assert total(start(3).ask(add(1), opens=False)) == total(answer) + 1


def test_a_sequence_that_was_begun_in_two_places_is_one_of_them(start: Start) -> None:
    """The one that was written first."""
    first, second = start(), start()
    one, other = first.submit(add(1)), second.submit(add(2))
    for harness in (first, second):
        harness.pump()
    for harness in (first, second):
        harness.run()
    assert total(first.answer(one)) == 1
    assert second.code(other) == "session_moved"


@EVERY
def test_a_numbered_step_is_known_again_by_another_engine(every: int, start: Start) -> None:
    """Its client sends it again under another name, and gets the same answer."""
    harness = start(every)
    answers = [harness.ask(add(number, turn=i)) for i, number in enumerate(NUMBERS, 1)]
    again = start(every).ask(add(NUMBERS[-1], turn=7), opens=False)
    assert again == answers[-1] | {"replayed": True}
    assert code(start(every).ask(add(1, turn=9), opens=False)) == "turn_gap"
    assert total(start(every).ask(add(1, turn=8), opens=False)) == total(answers[-1]) + 1


def test_steps_of_one_pass_are_written_beside_each_other(start: Start) -> None:
    """And run again together."""
    harness, names = start(10), [f"s{i}" for i in range(8)]
    for number in NUMBERS:
        for name in names:
            harness.submit(add(number, name))
        harness.run()
    assert harness.num_calls == len(NUMBERS)
    after = start(10)
    sent = [after.submit(add(1, name), opens=False) for name in names]
    after.run()
    assert [total(after.answer(request)) for request in sent] == [sum(NUMBERS) + 1] * 8
    assert after.num_calls == len(NUMBERS) + 1


def test_a_step_that_fails_is_not_written(start: Start) -> None:
    """The sequence stays where it was, here and elsewhere."""
    harness = start()
    assert total(harness.ask(add(1))) == 1
    assert code(harness.ask(add(BAD))) == "internal"
    assert total(start().ask(add(1))) == 2


def test_a_sequence_that_has_run_out_is_not_found(start: Start) -> None:
    """Its time passes while no engine has it, too."""
    harness = start()
    harness.ask(add(1))
    harness.clock.now += harness.engine.table.get("a").idle_s
    assert code(start().ask(add(1), opens=False)) == "session_not_found"
    assert total(start().ask(add(1, start=True), opens=False)) == 1


@EVERY
def test_a_sequence_in_use_does_not_idle_while_no_engine_is_there(every: int, start: Start) -> None:
    """The step that its engine died of is done by the next one, however long that took to start."""
    harness = start(every)
    harness.ask(add(1))
    harness.clock.now += harness.engine.table.get("a").idle_s
    assert total(start(every).ask(add(1), opens=False, again="lost")) == 2


def test_another_program_has_other_sequences(start: Start, tmp_path: Path) -> None:
    """Neither other weights nor other declarations nor another name find what was not made by them."""
    (tmp_path / "none").write_bytes(b"one")
    scopes = {scope_of(settings(1), tmp_path, "model"), scope_of(settings(1), tmp_path, "other")}
    (tmp_path / "none").write_bytes(b"two")
    scopes.add(scope_of(settings(1), tmp_path, "model"))
    assert len(scopes) == 3
    assert total(start().ask(add(1))) == 1
    assert code(start(scope="states-other").ask(add(1), opens=False)) == "session_not_found"


def test_a_damaged_sequence_is_refused(start: Start, store: MortalStore) -> None:
    """It is not begun anew behind its client's back."""
    start().ask(add(1))
    for key in store.list("states-model/a"):
        store.delete(key)
        store.create(key, b"damaged")
    assert code(start().ask(add(1), opens=False)) == "store_unavailable"


def test_a_name_that_no_folder_can_have_is_refused(start: Start) -> None:
    """Whatever the store."""
    assert code(start().ask(add(1, ".."))) == "invalid_request"


def test_open_is_kept_with_its_metadata(start: Start) -> None:
    """Also without a step."""
    start().ask(Open(session_id="a", metadata={"who": "me"}), opens=True)
    after = start()
    assert total(after.ask(add(5), opens=False)) == 5
    assert after.engine.table.get("a").metadata == {"who": "me"}
