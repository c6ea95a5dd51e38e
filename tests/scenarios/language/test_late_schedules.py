"""Random schedules of clients, of threads that take their time, of a store that fails, and of two engines that share it."""

from __future__ import annotations

import copy
import itertools
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.harness import Harness, stock_reply
from tests.support.pictures import noise
from tests.support.running_ahead import runner_of, with_graphs
from tests.support.store_engines import FailingStore
from tests.support.tiny import llama, llava
from ts_stateful.clock import Clock
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Cancel, Close, Fork, Image, Info, Open, Prompt, Rewind
from ts_stateful.session_log.journal import GRACE_S
from ts_stateful.sessions.session import Session

NAMES = st.sampled_from(["a", "b", "c"])
ENGINES = st.integers(0, 1)
TEXTS = st.sampled_from(["Hi", "What color is the circle?"])
SYSTEMS = st.sampled_from([None, "You answer every question in a single short word, please."])
BEGINNINGS = st.sampled_from(["Hi", *(f"What color is the circle? {end}" for end in ("", "And?"))])
PICTURES = ("one", "two")


class Asked(NamedTuple):
    """A request, and how it was submitted."""

    engine: int
    request: str
    command: Any
    fields: dict[str, Any]


@cache
def blind() -> Model:
    return llama()


@cache
def seeing() -> Model:
    return llava()


@cache
def model_with_graphs(sees: bool) -> Model:
    return with_graphs("llava" if sees else "llama")


@cache
def expected(prompt: tuple[int, ...]) -> list[int]:
    return stock_reply(blind(), prompt, 8)


class _FirstClock(Clock):
    """The clock of the first engine."""

    def __init__(self, engines: list[Harness]) -> None:
        self._engines = engines

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._engines[0].clock.now


class LateSchedules(RuleBasedStateMachine):
    """Clients of two engines with one store, whose threads do nothing before they are told to."""

    @initialize(
        sees=st.booleans(),
        budget=st.sampled_from([None, 200, 500]),
        host=st.sampled_from([0, 150]),
        spills=st.booleans(),
        policy=st.sampled_from(["required", "best_effort"]),
    )
    def start(self, sees: bool, budget: int | None, host: int, spills: bool, policy: Any) -> None:
        """Also with room for a few sessions only."""
        self.model = seeing() if sees else blind()
        self.sees = sees
        token_bytes = self.model.forward.layout.token_bytes
        handler: dict[str, Any] = {"deviceCacheBytes": budget * token_bytes} if budget else {}
        handler["store"] = {"kvSpill": spills, "kvSpillBytes": 300 * token_bytes}
        self.engines: list[Harness] = []
        self.store = FailingStore(_FirstClock(self.engines))
        self.host_bytes = host * token_bytes
        self.settings = {"maxNumSequence": 3, "handler": handler}
        self.policy = policy
        self.num_engines = 0
        self.engines += [self._start_engine(), self._start_engine()]
        self.asked: list[Asked] = []
        self.dropped: set[str] = set()
        self.num_alone = 0

    def _start_engine(self) -> Harness:
        self.num_engines += 1
        harness = Harness(
            self.model,
            copy.deepcopy(self.settings),
            store=self.store,
            policy=self.policy,
            first_id=100_000 * self.num_engines,
        )
        table = harness.engine.table
        table.limits = table.limits._replace(host_bytes=self.host_bytes)  # as on a GPU
        harness.media |= {name: noise(seed) for seed, name in enumerate(PICTURES)}
        return harness

    def _ask(self, engine: int, command: Any, **fields: Any) -> None:
        request = self.engines[engine].submit(command, **fields)
        self.asked.append(Asked(engine, request, command, fields))

    def _images(self, count: int) -> tuple[Image, ...]:
        return tuple(Image(url=name) for name in PICTURES[: count if self.sees else 0])

    @rule(engine=ENGINES, name=NAMES, system=SYSTEMS, images=st.integers(0, 2))
    def open(self, engine: int, name: str, system: str | None, images: int) -> None:
        """Under any id."""
        command = Open(session_id=name, system=system, images=self._images(images))
        self._ask(engine, command, creates_session=True)

    @rule(
        engine=ENGINES,
        name=NAMES,
        text=TEXTS,
        images=st.integers(0, 1),
        max_new_tokens=st.integers(1, 8),
        turn=st.sampled_from([None, None, 1, 2, 3]),
        stream=st.booleans(),
    )
    def prompt(self, engine: int, name: str, images: int, text: str, **fields: Any) -> None:
        """Of a session that may be here, elsewhere or nowhere."""
        command = Prompt(
            session_id=name,
            prompt=text,
            images=self._images(images),
            ignore_eos=True,
            **fields,
        )
        self._ask(engine, command)

    @rule(engine=ENGINES, texts=st.lists(BEGINNINGS, min_size=1, max_size=3), shows=st.booleans())
    def prompt_alone(self, engine: int, texts: list[str], shows: bool) -> None:
        """With sessions of their own, that end with them; what they have in common is computed once."""
        for text in texts:
            self.num_alone += 1
            name, images = f"alone{self.num_alone}", self._images(int(shows))
            command = Prompt(session_id=name, prompt=text, images=images, max_new_tokens=2)
            self._ask(engine, command, creates_session=True, ephemeral=True)

    @rule(engine=ENGINES, name=NAMES, kind=st.sampled_from([Cancel, Close, Info]))
    def tell(self, engine: int, name: str, kind: Any) -> None:
        """Cancel, close, info."""
        self._ask(engine, kind(session_id=name))

    @rule(engine=ENGINES, name=NAMES, new=NAMES, at_turn=st.sampled_from([None, 0, 1]))
    def fork(self, engine: int, name: str, new: str, at_turn: int | None) -> None:
        """Into an id that may be in use."""
        command = Fork(session_id=name, new_session_id=new, at_turn=at_turn)
        self._ask(engine, command, creates_session=True)

    @rule(engine=ENGINES, name=NAMES, to_turn=st.integers(0, 2))
    def rewind(self, engine: int, name: str, to_turn: int) -> None:
        """To a turn that may be there."""
        self._ask(engine, Rewind(session_id=name, to_turn=to_turn))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        """A client goes away, also one that has its answer."""
        self._drop(data.draw(st.sampled_from(self.asked[-4:])))

    @rule(engine=ENGINES, name=NAMES)
    def disconnect_all(self, engine: int, name: str) -> None:
        """All of a session go away."""
        for asked in self.asked:
            if asked.engine == engine and asked.command.session_id == name:
                self._drop(asked)

    def _drop(self, asked: Asked) -> None:
        self.dropped.add(asked.request)
        self.engines[asked.engine].engine.drop(asked.request)

    @rule(engine=ENGINES, data=st.data())
    def work(self, engine: int, data: st.DataObject) -> None:
        """Another thread does something, in any order."""
        harness = self.engines[engine]
        if harness.num_jobs:
            harness.work(data.draw(st.integers(0, harness.num_jobs - 1)))

    @rule(engine=ENGINES, count=st.integers(1, 4))
    def hear(self, engine: int, count: int) -> None:
        """The engine hears of it."""
        for _ in range(count):
            self.engines[engine].hear()

    @rule(engine=ENGINES, count=st.integers(1, 6))
    def steps(self, engine: int, count: int) -> None:
        """The engine works."""
        for _ in range(count):
            if self.engines[engine].engine.busy:
                self.engines[engine].engine.step()

    @rule(engine=ENGINES)
    def catch_up(self, engine: int) -> None:
        """All that was asked of an engine is done."""
        self.engines[engine].run()

    @rule(seconds=st.sampled_from([0.5, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Time passes: sessions expire, and turns that nobody waits for."""
        for harness in self.engines:
            harness.clock.now += seconds
            harness.engine.tick()

    @rule(engine=ENGINES)
    def evict(self, engine: int) -> None:
        """Memory is short."""
        self.engines[engine].engine.table.evict_idle()

    @rule()
    def fail(self) -> None:
        """The store goes down, or comes back."""
        self.store.fails = not self.store.fails

    @rule(engine=ENGINES)
    def kill(self, engine: int) -> None:
        """An engine dies. Its worker gives the next one what was not answered."""
        before, after = self.engines[engine], self._start_engine()
        after.clock.now = before.clock.now
        after.events = before.events
        self.engines[engine] = after
        for asked in self.asked:
            if asked.engine == engine and asked.request not in self.dropped:
                self._take_up(after, asked)

    def _take_up(self, harness: Harness, asked: Asked) -> None:
        events = harness.events.get(asked.request, [])
        if any(event.kind is EventKind.LAST for event in events):
            return
        harness.submit(
            asked.command,
            asked.request,
            is_retry=True,
            skip=sum(event.num_chars for event in events),
            replay=tuple(itertools.chain(*(event.token_ids for event in events))),
            **asked.fields,
        )

    @invariant()
    def nothing_is_inconsistent(self) -> None:
        """Between any two calls."""
        for harness in getattr(self, "engines", ()):
            harness.engine.check_integrity()

    def teardown(self) -> None:
        """Everybody has an answer, every session is what stock code makes of it, and nothing is left when all have ended."""
        if not hasattr(self, "engines"):
            return
        self.store.fails = False
        self._finish()
        for asked in self.asked:
            if asked.request not in self.dropped:
                self.engines[asked.engine].last(asked.request)
        for harness in self.engines:
            for session in harness.engine.table:
                self._check(session)
        self._adopt()
        self._leave()

    def _finish(self) -> None:
        for _ in range(3):
            for harness in self.engines:
                harness.run()
                harness.clock.now += 11  # nobody comes back for turns whose client has gone
                harness.engine.tick()
                harness.run()

    def _check(self, session: Session[Context]) -> None:
        assert not session.work
        context = session.state
        assert not context.reserved
        assert not context.unseen
        assert not context.incoming
        if self.sees:
            return
        log: list[int] = list(context.opening.ids)
        for turn in session.state.turns:
            log = [*log[: turn.delta.keep], *turn.delta.ids]
            prompt = turn.usage.prompt_tokens
            # Stock code stops where a token ends the turn, which is not heeded here.
            pairs = zip(log[prompt:], expected(tuple(log[:prompt])), strict=False)
            assert all(mine == theirs for mine, theirs in pairs)
        assert log == context.log

    def _adopt(self) -> None:
        """A third engine finds what there is in the store, and goes on with it."""
        third = Harness(self.model, store=self.store, first_id=1)
        third.clock.now = self.engines[0].clock.now
        for name in "abc":
            answer = third.prompt(name, "And the square?", max_new_tokens=8, ignore_eos=True)
            if "error" in answer:
                assert answer["error"]["code"].startswith("session_"), answer
            else:
                self._check(third.engine.table.get(name))
        self.engines.append(third)

    def _leave(self) -> None:
        for harness in self.engines:
            for session in list(harness.engine.table):
                harness.close(session.session_id)
        self._finish()
        for harness in self.engines:
            stats = harness.engine.stats()
            assert (stats.sessions_open, stats.turns_in_progress) == (0, 0)
            kept = stats.shared_bytes + stats.implicit_bytes
            assert (stats.device_bytes, stats.host_bytes) == (kept, 0)
            spill = harness.kind.persistence.offload
            assert not harness.kind._core.waiting._queues
            if spill is not None:
                assert (spill._num_reading, spill._is_writing, len(spill._waiting)) == (0, False, 0)
        for harness in self.engines:
            # What was written while a session ended, and one that had been adopted, stay to the end of their life.
            harness.clock.now += 600 + GRACE_S
        self.store.sweep()
        assert not self.store.list("sessions")
        assert not self.store.list("kv")


class LateSchedulesAhead(LateSchedules):
    """The same, of engines that compute steps ahead as on a GPU."""

    def _start_engine(self) -> Harness:
        self.model = model_with_graphs(self.sees)
        harness = super()._start_engine()
        runner_of(harness).runs_ahead = True
        return harness


# Without the phase that explains a failure, whose tracing costs more than the engine.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
LateSchedules.TestCase.settings = settings(max_examples=20, stateful_step_count=50, phases=PHASES)
LateSchedulesAhead.TestCase.settings = settings(
    max_examples=8, stateful_step_count=50, phases=PHASES
)
TestLateSchedules = pytest.mark.timeout(600)(LateSchedules.TestCase)
TestLateSchedulesAhead = pytest.mark.timeout(600)(LateSchedulesAhead.TestCase)
