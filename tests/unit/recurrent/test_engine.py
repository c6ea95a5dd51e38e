"""Sequences of a model with recurrent state: where they begin and end, their order, their slots, and what fails."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.state_harness import StateHarness, state_settings
from ts_stateful.protocol.events import Encoding
from ts_stateful.protocol.requests import (
    Close,
    Fork,
    Hello,
    Info,
    InputTensor,
    Open,
    OutputName,
    Prompt,
    Step,
)
from ts_stateful.recurrent.passes import Passes
from ts_stateful.recurrent.slots import SlotPool

COUNTER = {
    "inputs": [{"name": "number", "datatype": "INT64", "shape": [1], "raw": "text"}],
    "outputs": [{"name": "sum", "datatype": "INT64", "shape": [1], "raw": "text"}],
    "states": [{"name": "total", "datatype": "INT64", "shape": [1]}],
}
BAD = 13  # a number that the counter does not survive


def count(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The running sum."""
    if bool((number == BAD).any()):
        raise ValueError("13")
    total = total + number
    return total, total


def counter(**options: Any) -> StateHarness:
    """An engine that counts."""
    initial = [torch.zeros(1, 1, dtype=torch.int64)]
    settings = state_settings(**COUNTER, **options.pop("handler", {}))
    return StateHarness(count, settings, initial=initial, **options)


def add(number: int, session_id: str = "a", **fields: Any) -> Step:
    """A step of the counter."""
    return Step(session_id=session_id, inputs=(InputTensor("number", [number]),), **fields)


def total(answer: dict[str, Any]) -> int:
    """The sum in an answer."""
    (output,) = answer["outputs"]
    return int(output["data"][0])


def test_a_sequence_begins_with_its_first_step_and_ends_with_its_last() -> None:
    """Open is implicit, END is explicit, and the id is free again at once."""
    harness = counter()
    assert [total(harness.ask(add(n))) for n in (1, 2)] == [1, 3]
    last = harness.ask(add(3, end=True))
    assert (total(last), last["turn"], last["closed"]) == (6, 3, True)
    assert total(harness.ask(add(5))) == 5


@pytest.mark.parametrize("ending", [SystemExit, GeneratorExit, BaseException])
def test_a_model_cannot_end_the_process(ending: type[BaseException]) -> None:
    """Only its step fails. Ctrl-C still ends it."""

    def run(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        if bool((number == BAD).any()):
            raise ending
        if bool((number == -BAD).any()):
            raise KeyboardInterrupt
        return count(number, total)

    initial = [torch.zeros(1, 1, dtype=torch.int64)]
    harness = StateHarness(run, state_settings(**COUNTER), initial=initial)
    assert [total(harness.ask(add(n, name))) for n, name in ((1, "a"), (2, "b"))] == [1, 2]
    bad, good = harness.submit(add(BAD, "a")), harness.submit(add(1, "b"))
    harness.run()
    assert harness.code(bad) == "internal"
    assert total(harness.answer(good)) == 3
    assert total(harness.ask(add(1, "a"))) == 2
    harness.submit(add(-BAD, "a"))
    with pytest.raises(KeyboardInterrupt):
        harness.run()


def test_a_server_that_drains_begins_no_sequence() -> None:
    """Neither under a new id, nor with START, nor after an END; the open ones go on."""
    harness = counter()
    harness.ask(add(1))
    harness.ask(add(1, "ended", end=True))
    for step in (add(1, "new"), add(1, "started", start=True), add(1, "ended")):
        refused = harness.submit(step, may_begin=False)
        assert harness.code(refused) == "engine_unavailable"
    assert total(harness.ask(add(2), may_begin=False)) == 3
    assert total(harness.ask(add(1, "new"))) == 1


def test_a_tier_without_a_limit_has_no_budget_in_the_stats() -> None:
    """It is 0 then, for metrics and `top`."""
    assert counter().engine.stats().host_budget_bytes == 0
    limited = counter(handler={"hostCacheBytes": 1000})
    assert limited.engine.stats().host_budget_bytes == 1000


def test_sequences_run_in_one_pass_and_each_in_its_order() -> None:
    """Three steps of each of eight sequences are three calls of the model."""
    harness = counter()
    names = [f"s{n}" for n in range(8)]
    asked = {
        name: [harness.submit(add(10 * index + step, name)) for step in range(3)]
        for index, name in enumerate(names)
    }
    harness.run()
    assert harness.num_calls == 3
    for index, name in enumerate(names):
        expected = [10 * index, 20 * index + 1, 30 * index + 3]
        assert [total(harness.answer(request_id)) for request_id in asked[name]] == expected


def test_a_pass_has_at_most_max_rows() -> None:
    """And those that wait longest come first."""
    harness = counter(handler={"maxRows": 2})
    for name in "abc":
        harness.submit(add(1, name))
    harness.engine.step()
    assert sorted(harness.events) == ["request-1", "request-2"]
    harness.submit(add(1, "a"))
    harness.engine.step()
    assert sorted(harness.events) == ["request-1", "request-2", "request-3", "request-4"]


def test_start_begins_anew_behind_what_waits() -> None:
    """With a lifetime of its own."""
    harness = counter(sequence_timeout_ms=100_000, sequence_max_idle_ms=100_000)
    first = harness.submit(add(1))
    second = harness.submit(add(2))
    harness.clock.now += 60
    anew = harness.submit(add(10, start=True))
    harness.run()
    assert [total(harness.answer(r)) for r in (first, second, anew)] == [1, 3, 10]
    assert harness.answer(anew)["turn"] == 1
    harness.clock.now += 60
    assert total(harness.ask(add(1))) == 11


def test_the_first_number_behind_the_end_is_that_of_the_next_sequence() -> None:
    """Also where it is sent before the end is answered."""
    harness = counter()
    harness.ask(add(1, turn=1))
    asked = [harness.submit(add(1, turn=2, end=True)), harness.submit(add(5, turn=1))]
    harness.run()
    assert [total(harness.answer(request_id)) for request_id in asked] == [2, 5]


def test_what_is_sent_behind_the_end_is_the_next_sequence() -> None:
    """Also when it was sent before the end was answered."""
    harness = counter()
    asked = [harness.submit(add(n, end=n == 2)) for n in (1, 2, 4, 5)]
    harness.run()
    assert [total(harness.answer(request_id)) for request_id in asked] == [1, 3, 4, 9]


@pytest.mark.parametrize("how", ["expired", "lost"])
def test_a_sequence_that_is_gone_is_not_begun_anew_in_silence(how: str) -> None:
    """Unless it is said."""
    harness = counter(sequence_max_idle_ms=10_000)
    if how == "expired":
        harness.ask(add(1))
        harness.clock.now += 11
        harness.engine.tick()
    refused = harness.submit(add(2), creates_session=how == "expired")
    expected = "session_expired" if how == "expired" else "session_not_found"
    assert harness.code(refused) == expected
    assert "start" in harness.answer(refused)["error"]["message"]
    assert total(harness.ask(add(2, start=True))) == 2


def test_a_step_that_fails_leaves_the_state_and_disturbs_nobody() -> None:
    """The others of its pass are answered, and its sequence goes on from where it stood."""
    harness = counter()
    harness.ask(add(1, "a"))
    harness.ask(add(1, "b"))
    bad, good = harness.submit(add(BAD, "a")), harness.submit(add(2, "b"))
    harness.run()
    assert harness.code(bad) == "internal"
    assert total(harness.answer(good)) == 3
    assert total(harness.ask(add(4, "a"))) == 5


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.PACKED, Encoding.RAW])
def test_results_may_be_views_of_parameters(encoding: Encoding) -> None:
    """Outputs and states; the slots hold no graph."""
    bias = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    vector = {"shape": [2], "raw": "text"}
    settings = state_settings(
        inputs=[{"name": "x", **vector}],
        outputs=[{"name": "y", **vector}],
        states=[{"name": "h", "shape": [2]}],
    )

    def run(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return bias.expand(len(x), 2), bias.expand(len(x), 2)

    harness = StateHarness(run, settings)
    step = Step(session_id="a", inputs=(InputTensor("x", [0.0, 0.0]),))
    asked = harness.submit(step, encoding=encoding)
    harness.run()
    assert b"error" not in harness.events[asked].body
    (session,) = harness.engine.table
    assert not any(state.requires_grad for state in session.state.copied())


class Unreadable(Tensor):
    """A tensor whose elements cannot be read if 13 is among them."""

    def tolist(self) -> Any:
        """Return the elements."""
        elements = super().tolist()
        if str(BAD) in str(elements):
            raise ValueError(elements)
        return elements


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.RAW])
def test_a_result_that_cannot_be_sent_fails_its_step_alone(encoding: Encoding) -> None:
    """Its state is what it was."""

    def run(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = total + number
        return total.as_subclass(Unreadable), total

    initial = [torch.zeros(1, 1, dtype=torch.int64)]
    harness = StateHarness(run, state_settings(**COUNTER), initial=initial)
    for name in "ab":
        harness.ask(add(1, name))
    bad, good = harness.submit(add(BAD - 1), encoding=encoding), harness.submit(add(2, "b"))
    first = harness.submit(add(BAD, "c"), encoding=encoding)
    harness.run()
    assert [harness.code(request_id) for request_id in (bad, first)] == ["internal", "internal"]
    assert total(harness.answer(good)) == 3
    again = harness.ask(add(4))
    assert (total(again), again["turn"]) == (5, 2)
    assert harness.ask(add(1, "c"))["turn"] == 1


def test_what_a_failed_pass_has_computed_is_not_kept_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that do not fit a GPU's memory together are tried one by one, with all of it."""
    harness = counter()
    computed: list[weakref.ref[Any]] = []
    held: list[bool] = []
    run = Passes.run

    def exhausted(*args: Any) -> Any:
        held.extend(there() is not None for there in computed)
        if not computed:
            activations = torch.empty(1)
            computed.append(weakref.ref(activations))
            raise torch.OutOfMemoryError
        return run(*args)

    monkeypatch.setattr(Passes, "run", exhausted)
    asked = [harness.submit(add(1, name)) for name in "ab"]
    harness.run()
    assert [total(harness.answer(request_id)) for request_id in asked] == [1, 1]
    assert held == [False, False]


def test_a_first_step_that_fails_opens_nothing() -> None:
    """Those behind it were meant to follow it, and are refused too."""
    harness = counter()
    bad, behind = harness.submit(add(BAD)), harness.submit(add(1))
    harness.run()
    assert (harness.code(bad), harness.code(behind)) == ("internal", "session_not_found")
    assert len(harness.engine.table) == 0
    assert total(harness.ask(add(2))) == 2


def test_a_numbered_step_counts_once() -> None:
    """Repeated while it waits or after it is done it gets the same answer; any other number is a gap."""
    harness = counter()
    asked = [harness.submit(add(7, turn=1)) for _ in range(2)]
    harness.run()
    assert [total(harness.answer(request_id)) for request_id in asked] == [7, 7]
    again = harness.ask(add(7, turn=1))
    assert (total(again), again["replayed"]) == (7, True)
    assert harness.code(harness.submit(add(7, turn=3))) == "turn_gap"
    assert total(harness.ask(add(1, turn=2))) == 8
    assert harness.code(harness.submit(add(7, turn=1))) == "turn_gap"


def test_numbered_steps_behind_a_failed_one_are_refused() -> None:
    """They build on what there is not."""
    harness = counter()
    harness.ask(add(1, turn=1))
    asked = [harness.submit(add(n, turn=turn)) for n, turn in ((BAD, 2), (1, 3))]
    harness.run()
    assert [harness.code(request_id) for request_id in asked] == ["internal", "turn_gap"]


def test_however_many_steps_wait_behind_a_failed_one() -> None:
    """None of them costs more than its own refusal."""
    harness = counter(max_sequence_job_queue_size=1000)
    harness.ask(add(1, turn=1))
    numbers = [(BAD, 2), *((1, turn) for turn in range(3, 1000))]
    asked = [harness.submit(add(number, turn=turn)) for number, turn in numbers]
    harness.run()
    assert {harness.code(request_id) for request_id in asked[1:]} == {"turn_gap"}
    assert total(harness.ask(add(1, turn=2))) == 2


def test_more_sequences_than_slots_lose_nothing() -> None:
    """The states of those that do not run wait in host memory."""
    harness = counter(max_slots=3)
    names = [f"s{n}" for n in range(10)]
    for step in range(1, 4):
        asked = [harness.submit(add(index, name)) for index, name in enumerate(names)]
        harness.run()
        assert [total(harness.answer(r)) for r in asked] == [step * index for index in range(10)]
    info = [harness.ask(Info(session_id=name)) for name in names]
    assert [answer["residency"] for answer in info].count("device") == 3
    assert all(answer["turns"] == 3 for answer in info)


@pytest.mark.parametrize("moved", ["keep", "restore"])
def test_a_step_whose_states_find_no_memory_fails_alone(
    moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way they go; all sequences stand where they stood."""

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError

    harness = counter(max_slots=2)
    for name in "abc":
        harness.ask(add(1, name))
    monkeypatch.setattr(SlotPool, moved, refuse)
    asked = [harness.submit(add(1, name)) for name in "ac"]
    harness.run()
    assert harness.code(asked[0]) == "out_of_memory"
    assert total(harness.answer(asked[1])) == 2
    monkeypatch.undo()
    assert [total(harness.ask(add(1, name))) for name in "abc"] == [2, 2, 3]


def test_host_memory_has_a_bound_too() -> None:
    """Beyond it no sequence is opened, and none is lost."""
    harness = counter(max_slots=2, handler={"hostCacheBytes": 8})
    for name in "abc":
        harness.ask(add(1, name))
    assert harness.code(harness.submit(add(1, "d"))) == "out_of_memory"
    assert [total(harness.ask(add(1, name))) for name in "abc"] == [2, 2, 2]


def test_a_slot_is_free_when_its_sequence_has_ended() -> None:
    """However it ended."""
    harness = counter(max_slots=2, sequence_max_idle_ms=10_000)
    harness.ask(add(1, "a", end=True))
    harness.ask(add(1, "b"))
    harness.ask(Close(session_id="b"))
    harness.ask(add(1, "c"))
    harness.clock.now += 11
    harness.engine.tick()
    assert harness.engine.stats().device_bytes == 0
    harness.engine.check_integrity()


def test_limits() -> None:
    """Open sequences, and steps that wait in one."""
    harness = counter(max_num_sequence=1, max_sequence_job_queue_size=1)
    asked = [harness.submit(add(1)) for _ in range(3)]
    assert harness.code(asked[2]) == "queue_full"
    assert harness.code(harness.submit(add(1, "b"))) == "too_many_sessions"
    harness.run()
    assert [total(harness.answer(request_id)) for request_id in asked[:2]] == [1, 2]


def test_open_fork_info_hello_close() -> None:
    """As for conversations."""
    harness = counter()
    assert harness.ask(Open(session_id="a", ttl_s=5, metadata={"who": "me"}))["session_id"] == "a"
    harness.ask(add(1))
    forked = harness.ask(Fork(session_id="a", new_session_id="b"))
    assert (forked["forked_from"], forked["turn"]) == ("a", 1)
    assert [total(harness.ask(add(n, name))) for n, name in ((1, "a"), (5, "b"))] == [2, 6]
    hello = harness.ask(Hello())
    assert hello["inputs"] == [{"name": "number", "datatype": "INT64", "shape": [1]}]
    waiting = harness.submit(add(1))
    assert harness.ask(Close(session_id="a"))["closed"]
    assert harness.code(waiting) == "session_closed"


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Prompt(session_id="a", prompt="Hello"), "type"),
        (Open(session_id="b", system="Be kind."), "system"),
        (Fork(session_id="a", new_session_id="b", at_turn=0), "at_turn"),
    ],
)
def test_what_a_conversation_would_take_is_refused(command: Any, field: str) -> None:
    """By name."""
    harness = counter()
    harness.ask(add(1))
    assert harness.answer(harness.submit(command))["error"]["field"] == field


def test_a_raw_request_gets_a_raw_answer() -> None:
    """And its session in the event, for the header."""
    harness = counter()
    request_id = harness.submit(add(1), encoding=Encoding.RAW)
    harness.run()
    event = harness.events[request_id]
    assert (event.body, event.content_type, event.session_id) == (b"1", "text/plain", "a")
    assert event.opened_until is not None


def test_outputs_can_be_chosen_and_ids_come_back() -> None:
    """Hidden ones are sent to those alone who ask."""
    settings = state_settings(
        inputs=[{"name": "x", "shape": [1]}],
        outputs=[{"name": "y", "shape": [1]}, {"name": "z", "shape": [1], "hidden": True}],
        states=[{"name": "h", "shape": [1]}],
    )
    harness = StateHarness(lambda x, h: (x + h, x - h, x), settings)
    step = Step(session_id="a", inputs=(InputTensor("x", [float("1")]),), id="7")
    answer = harness.ask(step)
    assert ([o["name"] for o in answer["outputs"]], answer["id"]) == (["y"], "7")
    both = Step(session_id="a", inputs=step.inputs, outputs=(OutputName("z"),))
    assert [o["name"] for o in harness.ask(both)["outputs"]] == ["z"]
