"""Random schedules of everything that clients of a model with recurrent state do, against plain integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.recurrent.test_engine import BAD, add, counter
from ts_stateful.protocol.requests import Close, Fork

NAMES = [f"s{n}" for n in range(6)]
IDLE_S = 100.0


@dataclass
class Expected:
    """A sequence as it should be; `asked` are the numbers that wait, and what each should give (None: refused)."""

    total: int = 0
    num_steps: int = 0
    last_used: float = 0.0
    asked: list[tuple[str, int, bool]] = field(default_factory=list)


class Schedules(RuleBasedStateMachine):
    """Fewer slots than sequences, and passes only now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = counter(max_slots=2, sequence_max_idle_ms=1000 * IDLE_S, max_num_sequence=6)
        self.expected: dict[str, Expected] = {}
        self.gone: set[str] = set()  # expired

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 9), end=st.booleans())
    def step(self, name: str, number: int, end: bool) -> None:
        """A step; the first one opens."""
        if name in self.gone:
            assert self.harness.code(self.harness.submit(add(number, name))) == "session_expired"
            return
        sequence = self.expected.setdefault(name, Expected())
        sequence.last_used = self.harness.clock.now
        request_id = self.harness.submit(add(number, name, end=end))
        sequence.asked.append((request_id, number, end))

    @rule(name=st.sampled_from(NAMES))
    def start(self, name: str) -> None:
        """A new beginning, of one that has expired too."""
        self.gone.discard(name)
        self.run()
        answer = self.harness.ask(add(1, name, start=True))
        assert (answer["outputs"][0]["data"], answer["turn"]) == ([1], 1)
        self.expected[name] = Expected(1, 1, self.harness.clock.now)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A step that the model does not survive."""
        self.run()
        name = data.draw(st.sampled_from(sorted(self.expected) or NAMES))
        if name not in self.expected:
            return
        self.expected[name].last_used = self.harness.clock.now
        refused = self.harness.submit(add(BAD, name))
        self.harness.run()
        assert self.harness.code(refused) == "internal"

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), other=st.sampled_from(NAMES))
    def fork(self, data: st.DataObject, other: str) -> None:
        """A copy, where its name is free."""
        self.run()
        name = data.draw(st.sampled_from(sorted(self.expected) or NAMES))
        if name not in self.expected:
            return
        answer = self.harness.ask(Fork(session_id=name, new_session_id=other))
        if other in self.expected:
            assert answer["error"]["code"] == "session_exists"
            return
        self.gone.discard(other)
        source = self.expected[name]
        self.expected[other] = Expected(source.total, source.num_steps, self.harness.clock.now)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """An end, also of what waits."""
        name = data.draw(st.sampled_from(sorted(self.expected)))
        assert self.harness.answer(self.harness.submit(Close(session_id=name)))["closed"]
        for request_id, _, _ in self.expected.pop(name).asked:
            assert self.harness.code(request_id) == "session_closed"

    @rule()
    def run(self) -> None:
        """All passes; every answer is what integers give."""
        self.harness.run()
        for name, sequence in list(self.expected.items()):
            for request_id, number, end in sequence.asked:
                sequence.total += number
                sequence.num_steps += 1
                answer: dict[str, Any] = self.harness.answer(request_id)
                assert answer["outputs"][0]["data"] == [sequence.total], (name, answer)
                assert answer["turn"] == sequence.num_steps
                if end:
                    sequence.total = sequence.num_steps = 0
            ended = sequence.asked and sequence.asked[-1][2]
            sequence.asked.clear()
            if ended:
                del self.expected[name]

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        """Time passes, and what is idle expires."""
        self.run()
        self.harness.clock.now += seconds
        self.harness.engine.tick()
        for name, sequence in list(self.expected.items()):
            if self.harness.clock.now - sequence.last_used >= IDLE_S:
                del self.expected[name]
                self.gone.add(name)

    @invariant()
    def nothing_is_broken(self) -> None:
        """Between any two calls."""
        self.harness.engine.check_integrity()
        assert {session.session_id for session in self.harness.engine.table} <= set(NAMES)


Schedules.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSchedules = Schedules.TestCase
