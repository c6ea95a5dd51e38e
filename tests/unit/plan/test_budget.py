"""The memory of sessions and engines, beside what the session tables keep with it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.plain_states import OneOwner
from tests.support.plans import GIB, LLAMA_8B, LLAVA_7B
from ts_stateful.config.sizes import StatesSize, TransformerSize, parse_bytes, read_transformer
from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.budget import Budget, Weight, find_budget, needed, weight
from ts_stateful.sessions.places import Limits
from ts_stateful.sessions.session import Residency
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable


def _budget(asked: Asked) -> tuple[Weight, Budget]:
    one = weight(asked)
    assert one is not None
    budget = find_budget(asked, one)
    assert budget is not None
    return one, budget


# Engines with 13 sessions hold one more than those with 14.
@example(92, 7, 24 * GIB, None, LLAVA_7B)
@given(
    st.integers(1, 300),
    st.sampled_from([1, 2, 3, 7]),
    st.integers(24 * GIB, 90 * GIB),
    st.one_of(st.none(), st.integers(1, 900 * GIB)),
    st.sampled_from([LLAMA_8B, LLAVA_7B]),
)
def test_a_table_of_sessions_holds_as_many(
    sessions: int, gpus: int, gpu_memory: int, memory: int | None, model: TransformerSize
) -> None:
    """With the planned budgets, the session tables keep the planned numbers on devices and in host memory."""
    asked = Asked(
        sessions, gpus=gpus, model=model, gpu_memory=gpu_memory, memory=memory, context=4096
    )
    one, budget = _budget(asked)
    found = [_filled(share, one, budget) for share in asked.shares]
    count = {place: sum(states.count(place) for states in found) for place in Residency}
    assert count[Residency.DEVICE] == budget.resident
    assert count[Residency.HOST] == budget.moved
    assert count[Residency.RECORD] == budget.rebuilt
    assert budget.resident + budget.moved + budget.rebuilt == sessions


@dataclasses.dataclass
class _State:
    """Bytes on a device or on the host."""

    size: int
    residency: Residency = Residency.DEVICE
    shared: tuple[Any, ...] = ()

    @property
    def device_bytes(self) -> int:
        return self.size if self.residency is Residency.DEVICE else 0

    @property
    def host_bytes(self) -> int:
        return self.size if self.residency is Residency.HOST else 0

    def to_host(self) -> None:
        self.residency = Residency.HOST

    def to_record(self) -> None:
        self.residency = Residency.RECORD

    def release(self) -> None:
        """Do nothing."""


@dataclasses.dataclass(eq=False)
class _Image:
    key: str
    num_bytes: int


def _filled(share: int, one: Weight, budget: Budget) -> list[Residency]:
    """Use all sessions of an engine in turn, and return the places of their states."""
    limits = Limits(share, 60.0, 600.0, device_bytes=budget.device, host_bytes=budget.host)
    shared: SharedCache[_Image] = SharedCache(0)
    table: SessionTable[_State] = SessionTable(limits, shared, OneOwner())
    images = [
        shared.get(str(number), lambda number=number: _Image(str(number), one.kept))  # type: ignore[misc]
        for number in range(share if one.kept else 0)
    ]
    for number in range(share):
        assert table.make_room(one.evicted)
        table.open(str(number), _State(one.evicted))
    assert len(images) in (0, share)
    return [session.state.residency for session in table]


def test_states_are_never_computed_again() -> None:
    """Sequences that do not fit the device need host memory; without it they are refused."""
    states = StatesSize.given(GIB)
    asked = Asked(100, gpus=1, gpu_memory=40 * GIB, memory=105 * GIB, states=states)
    _, budget = _budget(asked)
    assert (budget.slots, budget.rebuilt, budget.moved) == (24, 0, 76)
    assert budget.host == 76 * GIB
    with pytest.raises(PlanRefused, match="--sessions 39"):
        _budget(dataclasses.replace(asked, memory=20 * GIB))
    with pytest.raises(PlanRefused, match="--sessions 11"):
        _budget(Asked(100, memory=20 * GIB, states=states))


def test_dtype_halves_what_a_session_takes(tmp_path: Path) -> None:
    """float32 doubles the bytes of KV states."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    model = read_transformer(tmp_path)
    half = weight(Asked(1, model=model, dtype="bfloat16"))
    full = weight(Asked(1, model=model, dtype="float32"))
    assert half is not None
    assert full is not None
    assert full.evicted == 2 * half.evicted


def test_rows_of_an_exported_program_are_kept() -> None:
    """Such a program computes exactly `maxRows` rows; other plans have fewer rows if sessions or memory are few."""
    states = StatesSize.given(GIB)
    asked = Asked(3, memory=90 * GIB, states=states, max_rows=20)
    assert _budget(asked)[1].rows == 3
    assert _budget(dataclasses.replace(asked, fixed_rows=True))[1].rows == 20


@given(
    st.integers(1, 3000),
    st.sampled_from([0, 1, 3]),
    st.one_of(
        st.builds(StatesSize.given, st.integers(1, 1 << 34)),
        st.sampled_from([LLAMA_8B, LLAVA_7B]),
    ),
    st.sampled_from([None, 7, 900]),
    st.booleans(),
)
def test_the_named_memory_is_enough(
    sessions: int, gpus: int, size: StatesSize | TransformerSize, rows: int | None, fixed: bool
) -> None:
    """With the memory that a plan without memory names, all sessions stay on the device."""
    asked = Asked(sessions, gpus=gpus, context=4096)
    if isinstance(size, StatesSize):
        asked = dataclasses.replace(
            asked, states=size, max_rows=rows, fixed_rows=fixed and rows is not None
        )
    else:
        asked = dataclasses.replace(asked, model=size)
    one = weight(asked)
    assert one is not None
    assert find_budget(asked, one) is None
    option, number = needed(asked, one, asked.share).split()
    assert option == ("--gpu-memory" if gpus else "--memory")
    given = parse_bytes(number)
    better = dataclasses.replace(asked, gpu_memory=given if gpus else None, memory=given)
    _, budget = _budget(better)
    assert budget.resident == sessions


@pytest.mark.parametrize(
    ("fields", "remedies"),
    [
        ({"model": LLAMA_8B, "memory": 8 * GIB}, ["--memory 34GiB"]),
        (
            {"model": LLAMA_8B, "gpus": 1, "gpu_memory": 20 * GIB, "context": 100_000},
            ["--gpu-memory 33GiB", "--tokens 24576"],
        ),
    ],
)
def test_a_session_that_does_not_fit_is_refused(
    fields: dict[str, Any], remedies: list[str]
) -> None:
    """The refusal names the memory, and for language models the length, of a session that fits."""
    with pytest.raises(PlanRefused) as refused:
        _budget(Asked(5, **fields))
    assert re.findall(r"--[a-z-]+ \d+\w*", str(refused.value).rpartition("; ")[2]) == remedies
