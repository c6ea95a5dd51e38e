"""Where sequences begin and end: the cases of Triton's sequence batcher and implicit state, on every way to send a step.

docs/state.md compares what is answered here with what Triton answers.
"""

from __future__ import annotations

import pytest

from tests.e2e.speak import HEADER, error_of, eventually
from tests.e2e.state_server import BALANCE, StateModels
from tests.e2e.steps import (
    END,
    START,
    Line,
    Lines,
    StreamLine,
    UnaryLine,
    new_id,
    number,
    post,
    sum_of,
    value,
)


@pytest.fixture
def line(lines: Lines, way: str) -> Line:
    """A line to a sequence of its own."""
    return lines(way)


def test_a_sequence_from_start_to_end(line: Line) -> None:
    """Every step builds on the one before."""
    numbers = range(1, 10)
    flags = {1: START, 9: END}
    answers = [line.ask(number(n, **flags.get(n, {}))) for n in numbers]
    assert [sum_of(answer) for answer in answers] == [1, 3, 6, 10, 15, 21, 28, 36, 45]
    assert [answer["turn"] for answer in answers] == list(numbers)
    assert [answer.get("closed", False) for answer in answers] == [False] * 8 + [True]
    assert {answer["session_id"] for answer in answers} == {line.session}


def test_a_sequence_of_one_step(line: Line) -> None:
    """It begins and ends with it."""
    answer = line.ask(number(42, **START, **END))
    assert (sum_of(answer), value(answer, "flags"), answer["closed"]) == (42, [True, True], True)
    assert error_of(line.ask({"type": "info"})) == ("session_closed", 410)


def test_start_may_be_left_out(line: Line) -> None:
    """An id that was never seen begins a sequence."""
    answer = line.ask(number(1))
    assert (sum_of(answer), value(answer, "flags")) == (1, [True, False])
    assert sum_of(line.ask(number(2, **END))) == 3


def test_an_id_is_free_again_behind_its_end(line: Line) -> None:
    """At once, with START and without."""
    for start in (START, {}):
        assert sum_of(line.ask(number(1, **start))) == 1
        assert sum_of(line.ask(number(2))) == 3
        assert sum_of(line.ask(number(3, **END))) == 6
    answer = line.ask(number(55))
    assert (sum_of(answer), answer["turn"]) == (55, 1)


def test_start_begins_anew_where_the_end_is_missing(line: Line) -> None:
    """The sequence before it is over, all of its states included."""
    steps = [number(1, **START), number(2), number(42, **START), number(9, **END)]
    answers = [line.ask(step) for step in steps]
    assert [sum_of(answer) for answer in answers] == [1, 3, 42, 51]
    assert [value(answer, "account") for answer in answers] == [
        [BALANCE - 1],
        [BALANCE - 3],
        [BALANCE - 42],
        [BALANCE - 51],
    ]
    assert value(answers[-1], "numbers") == [42, 9]
    assert [answer["turn"] for answer in answers] == [1, 2, 1, 2]


def test_controls_tell_the_model_where_it_is(line: Line) -> None:
    """START is true on the first step, said or not, and END on the last."""
    steps = [number(1), number(1), number(1, **END), number(1, **START), number(1, **START)]
    flags = [value(line.ask(step), "flags") for step in steps]
    assert flags == [
        [True, False],
        [False, False],
        [False, True],
        [True, False],
        [True, False],
    ]


def test_states_begin_as_declared(line: Line) -> None:
    """With a number, with a tensor from a file, and with nothing."""
    answer = line.ask(number(7))
    assert (sum_of(answer), value(answer, "account")) == (7, [BALANCE - 7])
    assert value(answer, "numbers") == [7]


def test_close_ends_a_sequence_without_a_step(line: Line) -> None:
    """As END does with one: the id is free."""
    assert sum_of(line.ask(number(5))) == 5
    assert line.ask({"type": "close"})["closed"] is True
    assert sum_of(line.ask(number(6))) == 6


def test_a_sequence_that_ran_out_says_so(line: Line) -> None:
    """Until somebody begins it anew: nobody is given a sum without its beginning."""
    assert line.ask({"type": "open", "ttl_s": 1})["session_id"] == line.session
    begun = line.ask(number(5))  # which comes too late where the machine stalls for a second
    assert "error" in begun or sum_of(begun) == 5
    eventually(lambda: "error" in line.ask({"type": "info"}))
    for _ in range(2):
        assert error_of(line.ask(number(6))) == ("session_expired", 410)
    assert sum_of(line.ask(number(6, **START))) == 6
    assert sum_of(line.ask(number(1))) == 7


def test_a_step_may_be_sent_again(line: Line) -> None:
    """With its number, the last one is answered from its record and not applied twice; no other number is taken."""
    first = line.ask(number(1, turn=1))
    assert sum_of(first) == 1
    assert line.ask(number(1, turn=1)) == {**first, "replayed": True}
    assert error_of(line.ask(number(1, turn=3))) == ("turn_gap", 409)
    assert sum_of(line.ask(number(2, turn=2))) == 3
    assert error_of(line.ask(number(1, turn=1))) == ("turn_gap", 409)
    assert sum_of(line.ask(number(3, turn=3))) == 6


def test_a_number_that_skips_ahead_begins_nothing(line: Line) -> None:
    """Neither a sequence nor anything that would count as one."""
    line.ask(number(1, **END))
    assert error_of(line.ask(number(1, turn=2))) == ("turn_gap", 409)
    assert error_of(line.ask({"type": "info"})) == ("session_closed", 410)
    assert sum_of(line.ask(number(5, turn=1))) == 5


def test_the_names_of_tritons_clients_mean_the_same(line: Line) -> None:
    """`parameters` with `sequence_id`, `sequence_start` and `sequence_end`; `id` comes back."""
    named = {"sequence_id": line.session}
    steps = [
        number(1, parameters={**named, "sequence_start": True}, id="one"),
        number(2, parameters=named, id="two"),
        number(3, parameters={**named, "sequence_end": True}, id="three"),
    ]
    answers = [line.ask(step) for step in steps]
    assert [(sum_of(answer), answer["id"]) for answer in answers] == [
        (1, "one"),
        (3, "two"),
        (6, "three"),
    ]
    assert answers[-1]["closed"] is True


def test_a_numeric_id_is_a_name(lines: Lines, way: str) -> None:
    """Of 64 bits, as Triton's."""
    line = lines(way, str(2**64 - 1))
    parameters = {"sequence_id": 2**64 - 1}
    assert sum_of(line.ask(number(1, parameters=parameters))) == 1
    answer = line.ask(number(2, **END))
    assert (sum_of(answer), answer["session_id"]) == (3, str(2**64 - 1))


def test_outputs_can_be_chosen(line: Line) -> None:
    """By name; a state is none."""
    answer = line.ask(number(5, outputs=[{"name": "account"}, {"name": "sum"}]))
    assert {output["name"] for output in answer["outputs"]} == {"sum", "account"}
    for name in ("total", "unknown"):
        refused = line.ask(number(5, outputs=[{"name": name}]))
        assert error_of(refused) == ("invalid_request", 400)
        assert refused["error"]["field"] == "outputs[0].name"
    assert sum_of(line.ask(number(1))) == 6


def test_an_answer_has_the_names_of_the_open_inference_protocol(line: Line) -> None:
    """Datatype and the shape of the row; the elements flat."""
    answer = line.ask(number(5))
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["sum"] == {"name": "sum", "datatype": "INT64", "shape": [1], "data": [5]}
    assert outputs["rows"]["shape"] == []
    assert outputs["flags"]["datatype"] == "BOOL"


def test_a_fork_goes_its_own_way(lines: Lines, line: Line, way: str) -> None:
    """It begins where its source is; from there on neither knows of the other."""
    for n in (1, 2):
        line.ask(number(n))
    forked = line.ask({"type": "fork", "new_session_id": new_id()})
    assert (forked["forked_from"], forked["turn"]) == (line.session, 2)
    assert error_of(line.ask({"type": "fork", "at_turn": 1})) == ("invalid_request", 400)
    fork = lines(way, forked["session_id"])
    assert sum_of(line.ask(number(10))) == 13
    answer = fork.ask(number(100))
    assert (sum_of(answer), answer["turn"]) == (103, 3)
    assert value(answer, "numbers") == [1, 2, 100]
    assert sum_of(line.ask(number(10, **END))) == 23
    assert sum_of(fork.ask(number(100))) == 203


@pytest.mark.parametrize("profile", ["ledger", "ledger-async", "ledger-sequence"])
def test_http_without_an_id_gets_one(state_models: StateModels, profile: str) -> None:
    """In the header and in the body; steps that name it go on, those that do not begin others."""
    server, model = state_models.server, state_models.named(profile)
    first = post(server, model, number(1))
    made, _, expires = first.headers[HEADER].partition("; ")
    assert made == first.json()["session_id"]
    assert expires.startswith("Expires=")
    assert sum_of(post(server, model, number(10, **END)).json()) == 10
    second = post(server, model, number(2, **END), session=made)
    assert sum_of(second.json()) == 3
    assert second.headers["ts_request_sequence_end"] == made


def test_a_unary_call_without_an_id_gets_one(state_models: StateModels) -> None:
    """In the body, the only place there is."""
    line = UnaryLine(state_models.server, state_models.named("ledger"), "")
    answer = line.call(number(1))
    assert sum_of(line.call(number(2, session_id=answer["session_id"], **END))) == 3
    assert sum_of(line.call(number(10, **END))) == 10
    line.close()


def test_a_stream_without_an_id_is_refused(state_models: StateModels) -> None:
    """By TorchServe, at once."""
    line = StreamLine(state_models.server, state_models.named("ledger-sequence"), "")
    line.send(number(1))
    status = line.receive_raw().status
    assert status.code
    assert "sequenceId" in status.message
    line.close()
