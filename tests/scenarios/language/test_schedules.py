"""Random schedules of everything that clients do, against a model of what sessions are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.harness import Harness, stock_reply
from tests.support.memory_store import MemoryStore
from tests.support.running_ahead import ahead, with_graphs
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import RawPrompt
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Cancel, Close, Fork, Open, Prompt, Rewind
from ts_stateful.store.base import Store

NAMES = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.sampled_from(["Hi", "What color is the circle?", "And the square?", "äöü 🙂 " * 6])
BEGINNING = "Which color has the small circle, and which one has the large square beside it? "
SYSTEMS = st.sampled_from(
    [None, "Be brief.", "You answer every question in a single short word, please."]
)


@cache
def model() -> Model:
    return llama()


@cache
def model_with_graphs() -> Model:
    return with_graphs()


@cache
def expected(prompt: tuple[int, ...], max_new_tokens: int) -> list[int]:
    return stock_reply(model(), prompt, max_new_tokens, eos_token_id=None)


@dataclass
class Asked:
    """A prompt in flight."""

    name: str
    session: Any
    max_new_tokens: int
    cancelled: bool = False
    text: str = ""  # of the prompt


@dataclass
class Talk:
    """What a session must be: the texts of its turns, of which some are still to come."""

    replies: list[str] = field(default_factory=list)


class Schedules(RuleBasedStateMachine):
    """Clients of one engine, which does one step at a time."""

    ALONE = "alone"  # the name of all sessions that end with their answers

    @initialize(budget=st.sampled_from([None, 150, 400]), spills=st.booleans())
    def start(self, budget: int | None, spills: bool) -> None:
        """A budget of so many tokens' KV states evicts idle sessions all the time, some of them to a store."""
        token_bytes = model().forward.layout.token_bytes
        limit: dict[str, Any] = {"onFull": "refuse"}
        if budget:
            limit["deviceCacheBytes"] = budget * token_bytes
        if spills:
            limit["store"] = {"kvSpill": True, "kvSpillBytes": 300 * token_bytes}
        settings = {"maxNumSequence": 3, "sequenceTimeoutMSec": 10**9, "handler": limit}
        self.harness = self.engine(settings, MemoryStore() if spills else None)
        self.talks: dict[str, Talk] = {}
        self.num_alone = 0
        self.text = BEGINNING  # of the last prompt without a session, and its reply
        self.asked: dict[str, Asked] = {}

    def engine(self, config: dict[str, Any], store: Store | None) -> Harness:
        """Return the engine."""
        return Harness(model(), config, store=store)

    @rule(name=NAMES, system=SYSTEMS)
    def open(self, name: str, system: str | None) -> None:
        """Refused where the id is taken or the table full."""
        answer = self.harness.ask(Open(session_id=name, system=system), creates_session=True)
        self._settle()
        if name in self.talks:
            assert answer["error"]["code"] == "session_exists"
        elif len(self.talks) == 3:
            assert answer["error"]["code"] == "too_many_sessions"
        elif "error" in answer:
            assert answer["error"]["code"] == "out_of_memory"
        else:
            self.talks[name] = Talk()

    @rule(name=NAMES, text=TEXTS, max_new_tokens=st.integers(1, 8), count=st.integers(0, 12))
    def prompt(self, name: str, text: str, max_new_tokens: int, count: int) -> None:
        """At most one runs and two wait in a session, which is opened if need be; the engine works on it for some steps."""
        if name not in self.talks:
            self.open(name, None)
        if name not in self.talks:  # there is no room
            return
        command = Prompt(
            session_id=name, prompt=text, max_new_tokens=max_new_tokens, ignore_eos=True
        )
        session = self.harness.engine.table.get(name)
        request = self.harness.submit(command)
        self.harness.pump()
        self.asked[request] = Asked(name, session, max_new_tokens)
        self._settle()  # it may be refused at once, for want of memory
        self.steps(count)

    @rule(
        ends=st.lists(st.sampled_from(["", "Why?", "And?"]), min_size=1, max_size=3),
        count=st.integers(0, 12),
        kind=st.sampled_from([Prompt, RawPrompt]),
        goes_on=st.booleans(),
    )
    def prompt_alone(
        self, ends: list[str], count: int, kind: type[Prompt], *, goes_on: bool
    ) -> None:
        """With sessions of their own, that end with the answers; what they have in common is computed once."""
        for end in ends:
            self.num_alone += 1
            command = kind(
                session_id=f"alone{self.num_alone}",
                prompt=(self.text if goes_on else BEGINNING) + end,
                max_new_tokens=4,
                ignore_eos=True,
            )
            request = self.harness.submit(command, creates_session=True, ephemeral=True)
            self.harness.pump()
            sequence = self.harness.turn_of(request)
            if sequence is None:  # it was refused at once, for want of memory or a place
                assert self._code(request) in ("out_of_memory", "too_many_sessions")
            else:
                self.asked[request] = Asked(self.ALONE, sequence.session, 4, text=command.prompt)
        self.steps(count)

    @rule(name=NAMES)
    def prompt_nobody(self, name: str) -> None:
        """There is no such session, or no more."""
        if name in self.talks:
            return
        request = self.harness.submit(Prompt(session_id=name, prompt="Hi"))
        self.harness.pump()
        assert self._code(request) in ("session_not_found", "session_closed", "session_expired")

    @precondition(lambda self: self.asked)
    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        """The engine works, and the store takes what it is given at once."""
        for _ in range(count):
            if self.harness.engine.busy:
                self.harness.steps(1)
                self.harness.pump()
                self._settle()

    @precondition(lambda self: self.asked)
    @rule()
    def finish(self) -> None:
        """The engine works until it has nothing left to do."""
        self.harness.run()
        self._settle()

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        """The turn in progress ends with what it has; without one nothing happens."""
        for asked in self.asked.values():
            if asked.name == name:
                asked.cancelled = True  # one of them: whichever runs
        request = self.harness.submit(Cancel(session_id=name))
        self.harness.pump()
        self._settle()
        assert ("error" in self.harness.last(request)) == (name not in self.talks)

    @rule(name=NAMES)
    def close(self, name: str) -> None:
        """What runs is cancelled, what waits is refused."""
        for asked in self.asked.values():
            if asked.name == name:
                asked.cancelled = True
        request = self.harness.submit(Close(session_id=name))
        self.harness.pump()
        self._settle()
        assert ("error" in self.harness.last(request)) == (name not in self.talks)
        self.talks.pop(name, None)

    @rule(name=NAMES, new=NAMES, back=st.integers(0, 2))
    def fork(self, name: str, new: str, back: int) -> None:
        """A session of its own from the turns that are committed, whatever the source does."""
        talk = self.talks.get(name)
        turn = max(0, len(talk.replies) - back) if talk else 0
        request = self.harness.submit(Fork(session_id=name, new_session_id=new, at_turn=turn))
        self.harness.pump()
        if talk is None or new in self.talks or len(self.talks) == 3:
            assert "error" in self.harness.last(request)
        else:
            assert self.harness.last(request)["turn"] == turn
            self.talks[new] = Talk(talk.replies[:turn])

    @rule(name=NAMES, to_turn=st.integers(0, 4))
    def rewind(self, name: str, to_turn: int) -> None:
        """Only an idle session goes back."""
        talk = self.talks.get(name)
        busy = any(asked.name == name for asked in self.asked.values())
        request = self.harness.submit(Rewind(session_id=name, to_turn=to_turn))
        self.harness.pump()
        if talk is None or busy or to_turn > len(talk.replies):
            assert "error" in self.harness.last(request)
        else:
            assert self.harness.last(request)["turn"] == to_turn
            del talk.replies[to_turn:]

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        """A client goes away and does not come back: its turn is rolled back, or its session ends."""
        request = data.draw(st.sampled_from(sorted(self.asked)))
        asked = self.asked.pop(request)
        before = len(asked.session.state.turns)
        self.harness.engine.drop(request)
        self.harness.clock.now += 10
        self.harness.engine.tick()
        self.harness.pump()
        self._settle()
        assert len(asked.session.state.turns) == before or asked.name == self.ALONE

    @rule()
    def evict(self) -> None:
        """Memory is short: whoever is idle loses the KV states."""
        self.harness.engine.table.evict_idle()

    @rule()
    def expire(self) -> None:
        """Nobody comes for a minute: idle sessions end, busy ones do not."""
        self.harness.clock.now += 61
        self.harness.engine.tick()
        busy = {asked.name for asked in self.asked.values()}
        for name in [name for name in self.talks if name not in busy]:
            del self.talks[name]

    @invariant()
    def sessions_are_what_they_must_be(self) -> None:
        """The table holds these sessions with these turns, and nothing is inconsistent."""
        self.harness.engine.check_integrity()
        table = self.harness.engine.table
        assert {one.session_id for one in table if not one.ephemeral} == set(self.talks)
        for name, talk in self.talks.items():
            assert [turn.text for turn in table.get(name).state.turns] == talk.replies

    def teardown(self) -> None:
        """Every request gets its answer in the end."""
        if hasattr(self, "harness"):
            self.harness.run()
            self._settle()
            assert not self.asked

    def _code(self, request: str) -> str:
        return str(self.harness.last(request)["error"]["code"])

    def _settle(self) -> None:
        """Takes note of the answers that have come, and compares them with what stock code says."""
        for request, asked in list(self.asked.items()):
            ends = [e for e in self.harness.events.get(request, []) if e.kind is EventKind.LAST]
            if not ends:
                continue
            del self.asked[request]
            answer = json.loads(ends[0].body)
            if "error" in answer:
                allowed = {"queue_full", "out_of_memory", "turn_gap"}
                assert answer["error"]["code"] in allowed | (
                    {"session_closed"} if asked.cancelled else set()
                )
                continue
            number = answer["turn"]
            if asked.text:
                self.text = asked.text + answer["text"]
            if asked.name in self.talks and self.harness_session(asked):
                assert len(self.talks[asked.name].replies) == number - 1
                self.talks[asked.name].replies.append(answer["text"])
            self._compare(asked, number, answer)

    def harness_session(self, asked: Asked) -> bool:
        return any(session is asked.session for session in self.harness.engine.table)

    def _compare(self, asked: Asked, number: int, answer: dict[str, Any]) -> None:
        log: list[int] = []
        for delta in [
            asked.session.state.opening,
            *(t.delta for t in asked.session.state.turns[:number]),
        ]:
            log = [*log[: delta.keep], *delta.ids]
        num_prompt = answer["usage"]["prompt_tokens"]
        reply = log[num_prompt:]
        reference = expected(tuple(log[:num_prompt]), asked.max_new_tokens)
        if answer["finish_reason"] == "cancelled":
            assert asked.cancelled
            assert reply == reference[: len(reply)]
        else:
            assert reply == reference


class SchedulesAhead(Schedules):
    """The same, of an engine that computes steps ahead as on a GPU."""

    def engine(self, config: dict[str, Any], store: Store | None) -> Harness:
        """Return the engine."""
        return ahead(model_with_graphs(), config, store=store)


# Without the phase that explains a failure, whose tracing costs more than the engine.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
Schedules.TestCase.settings = settings(max_examples=100, stateful_step_count=40, phases=PHASES)
SchedulesAhead.TestCase.settings = settings(max_examples=40, stateful_step_count=40, phases=PHASES)
TestSchedules = pytest.mark.timeout(600)(Schedules.TestCase)
TestSchedulesAhead = pytest.mark.timeout(600)(SchedulesAhead.TestCase)
