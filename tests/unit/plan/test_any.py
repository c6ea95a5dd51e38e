"""Plans for any request: accepted ones work, and refusals name options that work."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.plans import GIB, LLAMA_8B, LLAVA_7B, STATES, document_of, plan_of
from ts_stateful.config.check import check_config
from ts_stateful.config.schema import load_config
from ts_stateful.config.sizes import StatesSize, TransformerSize
from ts_stateful.plan import Asked, Plan, PlanRefused
from ts_stateful.plan.budget import Budget, Weight, find_budget, weight
from ts_stateful.protocol.profile import Profile
from ts_stateful.sessions.session import Residency
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import Limits, SessionTable

_TINY = TransformerSize(2, 1, 8, 8, 16, 3, 512, None, 4000, True)
_CURE = re.compile(
    r"--(image-tokens|sessions|active|tokens|context|dtype|gpu-memory|memory|idle|profile) ([\w.]+)"
)
_FIELDS = {
    "image-tokens": "session_image_tokens",
    "tokens": "session_tokens",
    "gpu-memory": "gpu_memory",
    "idle": "idle_min",
}


_sizes = st.one_of(st.none(), st.integers(1, 1 << 20), st.integers(1, 1 << 42))
_anything = st.fixed_dictionaries(
    {
        "sessions": st.one_of(st.integers(1, 20), st.integers(1, 20_000)),
        "profile": st.sampled_from(Profile),
        "gpus": st.sampled_from([0, 1, 2, 4, 8, 64]),
        "active": st.one_of(st.none(), st.integers(1, 2000)),
        "dtype": st.sampled_from(["auto", "float32", "float16"]),
        "memory": _sizes,
        "gpu_memory": _sizes,
        "weight_bytes": st.one_of(st.none(), st.integers(1, 1 << 40)),
        "idle_min": st.one_of(st.integers(1, 100), st.floats(0.01, 40_000)),
        "opened_per_min": st.floats(0, 5000),
        "waiting": st.integers(1, 100),
    }
)
_of_a_model = st.fixed_dictionaries(
    {
        "model": st.sampled_from([LLAMA_8B, LLAVA_7B, _TINY]),
        "context": st.one_of(st.none(), st.integers(1, 200_000)),
        "session_tokens": st.one_of(st.none(), st.integers(1, 200_000)),
        "session_image_tokens": st.one_of(st.none(), st.integers(0, 3000)),
    }
)
_of_states = st.fixed_dictionaries(
    {
        "states": st.one_of(
            st.builds(StatesSize.given, st.integers(1, 1 << 34)),
            st.just(StatesSize.of(load_config(STATES).state.states)),  # type: ignore[union-attr]
        ),
        "max_rows": st.one_of(st.none(), st.integers(1, 5000)),
    }
)
_asked = st.tuples(_anything, st.one_of(_of_a_model, _of_states, st.just({})))


@settings(max_examples=100)
@given(_asked, st.data())
def test_accepted_requests_work_and_refusals_name_options_that_work(
    parts: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    """The check finds no error in a plan, and following the refusals leads to a plan."""
    fields = {**parts[0], **parts[1]}
    if not fields["gpus"]:
        fields["gpu_memory"] = None
    for _ in range(8):
        plan = _plan_or_reason(fields)
        if isinstance(plan, Plan):
            break
        cures = _CURE.findall(plan.rpartition("; ")[2])
        assert cures, plan
        name, value = data.draw(st.sampled_from(cures))
        fields[_FIELDS.get(name, name)] = _value(name, value)
    assert isinstance(plan, Plan), "the cures go round in circles"
    document = document_of(plan)
    findings = check_config(load_config(document), fields.get("model"))
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert document["maxNumSequence"] >= fields["sessions"]
    assert document["handler"]["engines"] <= max(1, fields["gpus"])


def _plan_or_reason(fields: dict[str, Any]) -> Plan | str:
    try:
        return plan_of(Asked(**fields))
    except PlanRefused as refused:
        return str(refused)


def _value(name: str, text: str) -> object:
    if name == "profile":
        return Profile(text)
    if name in ("gpu-memory", "memory"):
        return int(text.removesuffix("GiB")) * GIB
    return text if name == "dtype" else int(text)


def _budget(asked: Asked, memory: int) -> tuple[Weight, Budget]:
    one = weight(asked)
    assert one is not None
    return one, find_budget(asked, one, memory)


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
    asked = Asked(sessions, gpus=gpus, model=model, memory=memory, context=4096)
    one, budget = _budget(asked, gpu_memory)
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
    table: SessionTable[_State] = SessionTable(limits, shared)
    images = [
        shared.get(str(number), lambda number=number: _Image(str(number), one.kept))  # type: ignore[misc]
        for number in range(share if one.kept else 0)
    ]
    for number in range(share):
        assert table.make_room(one.evicted)
        table.open(str(number), _State(one.evicted))
    assert len(images) in (0, share)
    return [session.state.residency for session in table]
