"""An engine with a store: what is written when, and what another engine makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import llava
from ts_stateful.engine.model import Model
from ts_stateful.events import EventKind
from ts_stateful.protocol import Cancel, Close, Continue, Fork, Image, Info, Open, Prompt, Rewind
from ts_stateful.store.base import StoreUnavailable
from ts_stateful.store.memory import MemoryStore
from ts_stateful.store.records import Opened, decode


class FailingStore(MemoryStore):
    """A store that can be out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        self._check()
        return super().create(key, data, ttl_s)

    def list(self, prefix: str) -> Sequence[str]:
        self._check()
        return super().list(prefix)

    def _check(self) -> None:
        if self.fails:
            raise StoreUnavailable("the store is out of order", "wait")


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees."""
    return llava()


@pytest.fixture
def store() -> FailingStore:
    """A store that both engines use."""
    return FailingStore()


@pytest.fixture
def first(model: Model, store: FailingStore) -> Harness:
    """The engine that a session is opened at."""
    return Harness(model, store=store)


@pytest.fixture
def second(model: Model, store: FailingStore) -> Harness:
    """Another engine with the same model and store."""
    return Harness(model, store=store)


def ask(text: str = "Hello", **fields: Any) -> Prompt:
    return Prompt(
        session_id="s", prompt=text, **{"max_new_tokens": 8, "ignore_eos": True, **fields}
    )


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


def expire(harness: Harness) -> None:
    """Lets an engine's idle sessions run out."""
    harness.clock.now += 61
    harness.engine.tick()
    harness.run()


def test_a_session_goes_on_elsewhere(model: Model, first: Harness, second: Harness) -> None:
    """Images, system prompt, turns: the next reply is that of the engine which has had it all along."""
    alone = Harness(model)
    second.pictures = first.pictures
    for harness in (first, alone):
        harness.open("s", [noise(1)], system="Be brief.")
        for text in ("What is it?", "And now?"):
            harness.ask(ask(text))
    here = alone.ask(ask("And then?"))
    encoded = model.vision.num_encoded if model.vision else 0
    there = second.ask(ask("And then?"))
    assert there["text"] == here["text"] != ""
    assert there["timing"]["restored_from"] == "store"
    assert there["turn"] == 3
    assert model.vision is not None
    assert model.vision.num_encoded == encoded
    reference_reply(model, second, "s", 8)


def test_the_last_event_goes_out_behind_the_record(first: Harness, store: FailingStore) -> None:
    """And so does the answer to `open`; whatever has left is in the store."""
    opening = first.submit(Open(session_id="s"), opens=True)
    request = first.submit(ask())
    while first.engine.busy or not first.events.get(request):
        first.pump()
        first.engine.step()
    kinds = [event.kind for event in first.events[request]]
    assert EventKind.LAST not in kinds
    assert len(store.list("sessions/s")) == 1
    first.pump()
    assert len(store.list("sessions/s")) == 2
    assert first.last(request)["turn"] == 1
    assert first.last(opening)["session_id"] == "s"


def test_two_owners_cannot_both_commit(first: Harness, second: Harness) -> None:
    """The loser is told, forgets what it has, and takes the session over as the winner left it."""
    first.open("s")
    second.ask(ask("One"))
    lost = first.ask(ask("Two"))
    assert code(lost) == "session_moved"
    again = first.ask(ask("Two"))
    assert again["turn"] == 2
    assert code(second.ask(ask("Three"))) == "session_moved"


def test_a_session_that_was_elsewhere_is_taken_back(first: Harness, second: Harness) -> None:
    """What is here of it lags behind: a turn that follows on what was said there is no gap."""
    first.open("s")
    first.ask(ask("One", turn=1))
    second.ask(ask("Two", turn=2))
    assert first.ask(Continue(session_id="s", turn=2, after=0))["turn"] == 2
    second.ask(ask("Three", turn=3))
    assert first.ask(ask("Four", turn=4))["turn"] == 4
    assert code(first.ask(ask("Six", turn=6))) == "turn_gap"
    assert code(first.ask(Continue(session_id="s", turn=9, after=0))) == "turn_gap"


def test_an_id_is_opened_once(first: Harness, second: Harness) -> None:
    """Wherever; what opens it a second time tells so, whichever request it is."""
    first.open("s")
    first.open("other")
    assert code(second.open("s")) == "session_exists"
    assert second.ask(Info(session_id="s"))["turns"] == 0
    assert (
        code(second.ask(structs.replace(ask(), session_id="other"), opens=True)) == "session_exists"
    )
    assert code(second.open("s")) == "session_exists"


def test_the_id_of_a_fork_is_opened_once(first: Harness, second: Harness) -> None:
    """Whoever waits for a fork that could not be made is told that there is none."""
    first.open("s")
    first.open("taken")
    second.ask(Info(session_id="s"))
    fork = second.submit(Fork(session_id="s", new_session_id="taken"), opens=True)
    waiting = second.submit(structs.replace(ask(), session_id="taken"))
    second.run()
    assert code(second.last(waiting)) == "session_not_found"
    refused = second.last(fork)["error"]
    assert (refused["code"], refused["field"]) == ("session_exists", "new_session_id")
    assert second.ask(structs.replace(ask(), session_id="taken"))["turn"] == 1


def test_a_turn_that_cannot_be_written_is_rolled_back(first: Harness, store: FailingStore) -> None:
    """It can be sent again, and the session is what it was."""
    first.open("s")
    first.ask(ask("One"))
    store.fails = True
    failed = first.ask(ask("Two", turn=2))
    assert code(failed) == "store_unavailable"
    assert failed["error"]["retryable"]
    assert first.ask(Info(session_id="s"))["turns"] == 1
    store.fails = False
    assert first.ask(ask("Two", turn=2))["turn"] == 2


def test_best_effort_goes_on(model: Model, store: FailingStore, second: Harness) -> None:
    """What could not be written is made up for with the next turn."""
    first = Harness(model, store=store, policy="best_effort")
    first.open("s")
    store.fails = True
    assert first.ask(ask("One"))["turn"] == 1
    assert first.ask(Info(session_id="s"))["saved"] is False
    assert first.engine.figures().store_failures == 1
    store.fails = False
    assert first.ask(ask("Two"))["turn"] == 2
    assert first.ask(Info(session_id="s"))["saved"] is True
    assert second.ask(Info(session_id="s"))["turns"] == 2


def test_best_effort_makes_up_for_images_too(
    model: Model, store: FailingStore, second: Harness
) -> None:
    """A turn whose image could not be written leaves no gap in the log."""
    first = Harness(model, store=store, policy="best_effort")
    second.pictures = first.pictures
    first.open("s")
    first.pictures["new"] = noise(3)
    store.fails = True
    assert first.ask(ask("See", images=(Image(url="new"),)))["turn"] == 1
    assert first.ask(Info(session_id="s"))["saved"] is False
    store.fails = False
    assert first.ask(ask("And now?"))["turn"] == 2
    assert first.ask(Info(session_id="s"))["saved"] is True
    assert second.ask(Info(session_id="s"))["turns"] == 2
    assert second.ask(ask("And then?"))["turn"] == 3
    reference_reply(model, second, "s", 8)


def test_forks_and_rewinds_are_kept(first: Harness, second: Harness, model: Model) -> None:
    """A fork goes on elsewhere as well, and a rewind is not undone by moving."""
    second.pictures = first.pictures
    first.open("s", [noise(1)])
    for text in ("One", "Two", "Three"):
        first.ask(ask(text))
    assert first.ask(Fork(session_id="s", new_session_id="f", at_turn=2), opens=True)["turn"] == 2
    assert first.ask(Rewind(session_id="s", to_turn=1))["turn"] == 1
    assert second.ask(Info(session_id="s"))["turns"] == 1
    assert second.ask(ask("Zwei"))["turn"] == 2
    reference_reply(model, second, "s", 8)
    forked = second.ask(structs.replace(ask("Drei"), session_id="f"))
    assert forked["turn"] == 3
    reference_reply(model, second, "f", 8)


def test_what_has_ended_is_removed(first: Harness, second: Harness, store: FailingStore) -> None:
    """Everywhere it is known how, for an hour."""
    first.open("s")
    first.ask(ask())
    first.close("s")
    assert not store.list("sessions")
    assert code(second.ask(ask())) == "session_closed"
    first.open("t")
    first.clock.now += 61
    first.engine.tick()
    first.run()
    assert not store.list("sessions")
    assert code(second.ask(Info(session_id="t"))) == "session_expired"
    assert code(second.ask(Info(session_id="u"))) == "session_not_found"


def test_a_session_of_another_model_is_refused(
    model: Model, first: Harness, store: FailingStore
) -> None:
    """The message names what differs."""
    first.open("s")
    other = llava()
    other.network.lm_head.weight.data.mul_(2)
    object.__setattr__(other, "fingerprint", {**model.fingerprint, "weights": "other"})
    refused = Harness(other, store=store).ask(ask())
    assert code(refused) == "session_not_found"
    assert "weights" in refused["error"]["message"]


def test_an_expired_session_is_not_taken_over(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """Its idle time goes on while nobody holds it, and who has asked for it leaves nothing behind."""
    first.open("s")
    second.clock.now += 61
    assert code(second.ask(ask())) == "session_expired"
    assert not store.list("adopted")
    expire(first)
    assert not store.list("sessions")


def test_a_session_in_use_does_not_idle_while_no_engine_is_there(
    first: Harness, second: Harness
) -> None:
    """The turn that its engine died of is done by the next one, however long that took to start."""
    first.open("s")
    second.clock.now += 61
    assert second.ask(ask(), again=True)["turn"] == 1


def test_what_is_left_behind_of_a_session_ends_alone(
    model: Model, first: Harness, second: Harness, store: FailingStore
) -> None:
    """It expires where nobody uses it any more; its log stays for those who go on with it elsewhere."""
    first.open("s")
    first.ask(ask())
    assert second.ask(ask())["turn"] == 2
    first.clock.now += 61
    first.engine.tick()
    first.run()
    assert len(store.list("sessions/s")) == 3
    assert second.ask(ask())["turn"] == 3
    assert Harness(model, store=store).ask(ask())["turn"] == 4


def test_a_session_in_use_elsewhere_does_not_expire_here(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """Although nothing was written there yet; who goes on with it last removes it."""
    first.open("s")
    first.ask(ask())
    assert second.ask(Info(session_id="s"))["turns"] == 1
    expire(first)
    assert len(store.list("sessions/s")) == 2
    assert second.ask(ask())["turn"] == 2
    expire(second)
    assert [store.list(where) for where in ("sessions", "adopted")] == [[], []]
    assert code(first.ask(ask())) == "session_expired"


def test_a_session_that_has_idled_here_comes_back_from_where_it_was_used(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """It has expired here alone, and is asked for here again."""
    first.open("s")
    second.clock.now += 50
    assert second.ask(ask())["turn"] == 1
    expire(first)
    assert first.ask(ask())["turn"] == 2
    assert first.ask(Info(session_id="s"))["turns"] == 2
    first.clock.now += 61
    lost = first.submit(ask())
    first.executor.run()
    first.run()
    assert code(first.last(lost)) == "session_expired"
    store.fails = True
    assert code(first.ask(ask())) == "store_unavailable"


def test_what_expires_without_having_been_written_is_known_to_have_expired(
    model: Model, store: FailingStore
) -> None:
    """The store, which is asked whether somebody else has it, knows nothing of it."""
    first = Harness(model, store=store, policy="best_effort")
    store.fails = True
    first.open("s")
    expire(first)
    store.fails = False
    assert code(first.ask(ask())) == "session_expired"


def test_a_session_that_was_only_looked_at_here_goes_on_elsewhere(
    first: Harness, second: Harness
) -> None:
    """What was adopted expires alone too."""
    first.open("s")
    second.ask(Info(session_id="s"))
    expire(second)
    assert first.ask(ask())["turn"] == 1


def test_requests_wait_in_order_for_their_session(first: Harness, second: Harness) -> None:
    """Several for one that is being looked for run in the order in which they came."""
    first.open("s")
    requests = [second.submit(ask(text)) for text in ("One", "Two")]
    second.run()
    assert [second.last(request)["turn"] for request in requests] == [1, 2]


def test_a_dropped_request_is_not_run(first: Harness, second: Harness) -> None:
    """Its client left while the session was being looked for."""
    first.open("s")
    gone = second.submit(ask())
    second.engine.drop(gone)
    second.run()
    assert gone not in second.events
    assert second.ask(Info(session_id="s"))["turns"] == 0


def test_a_turn_is_taken_up_behind_what_was_told(first: Harness, second: Harness) -> None:
    """The stream goes on where it stood: the same text, the ids that were told not chosen again."""
    first.open("s")
    whole = first.ask(ask(max_new_tokens=20, temperature=1.0, seed=3, turn=1))["text"]
    first.ask(Rewind(session_id="s", to_turn=0))
    told = first.submit(ask(max_new_tokens=20, temperature=1.0, seed=3, stream=True))
    first.steps(12)
    ids = [token for event in first.events[told] for token in event.token_ids]
    text = "".join(first.parts(told))
    assert 4 < len(ids) < 20
    request = second.submit(
        ask(max_new_tokens=20, temperature=1.0, seed=3, stream=True),
        again=True,
        skip=len(text),
        replay=tuple(ids),
    )
    second.run()
    rest = "".join(second.parts(request)) + second.last(request)["text"]
    assert text + rest == whole
    new = [token for event in second.events[request] for token in event.token_ids]
    assert (*ids, *new) == second.engine.table.get("s").turns[0].delta.ids[-20:][
        : len(ids) + len(new)
    ]


@pytest.mark.parametrize("command", [Open(session_id="s"), ask()])
def test_an_answer_that_was_lost_is_given_again(
    first: Harness, second: Harness, command: Open | Prompt
) -> None:
    """What opened a session and was done when the engine died is not done twice."""
    before = first.ask(command, opens=True)
    request = next(iter(first.events))
    second._ids = iter([int(request[1:])])  # type: ignore[assignment]
    after = second.ask(command, opens=True, again=True)
    assert after["session_id"] == before["session_id"]
    assert second.engine.table.get("s").turns == first.engine.table.get("s").turns


def test_a_fork_that_was_made_is_not_made_twice(first: Harness, second: Harness) -> None:
    """Also where nobody was told; and one that was not made is made now."""
    first.open("s")
    first.ask(ask())
    fork = Fork(session_id="s", new_session_id="f")
    request = first.submit(fork, opens=True)
    first.run()
    second._ids = iter([int(request[1:]), 90, 91])  # type: ignore[assignment]
    again = second.ask(fork, opens=True, again=True)
    assert (again["session_id"], again["turn"], again["forked_from"]) == ("f", 1, "s")
    other = structs.replace(fork, new_session_id="g")
    assert second.ask(other, opens=True, again=True)["session_id"] == "g"
    assert code(second.ask(fork, opens=True, again=True)) == "session_exists"


def test_what_never_got_there_begins_anew(second: Harness) -> None:
    """An `open` that the engine had when it died, but not in the store yet."""
    assert second.ask(Open(session_id="s"), opens=True, again=True)["session_id"] == "s"


def test_a_close_that_was_done_is_answered_again(first: Harness, second: Harness) -> None:
    """By the next engine; whoever closes a session that was closed is told so."""
    first.open("s")
    first.close("s")
    assert second.ask(Close(session_id="s"), again=True) == {"session_id": "s", "closed": True}
    assert code(second.ask(Close(session_id="s"))) == "session_closed"


@pytest.mark.parametrize("expires", [False, True])
def test_an_open_that_was_lost_does_not_meet_who_had_its_id(
    first: Harness, second: Harness, expires: bool
) -> None:
    """A session of that id has ended long ago; the one that the dead engine was asked for begins."""
    first.open("s")
    if expires:
        expire(first)
    else:
        first.close("s")
    assert second.ask(Open(session_id="s"), opens=True, again=True)["session_id"] == "s"
    assert second.ask(ask())["turn"] == 1


def test_a_pulled_turn_tells_the_worker_of_its_ids(first: Harness) -> None:
    """Until it is over: what a `continue` has shown is chosen for good."""
    first.open("s")
    pulled = first.submit(ask(max_new_tokens=12), pull=True)
    first.steps(6)
    first.ask(Continue(session_id="s", turn=1, after=0))
    events = first.events[pulled]
    assert [event.more for event in events if event.kind is EventKind.LAST] == [True]
    ids = [token for event in events for token in event.token_ids]
    assert ids == list(first.engine.table.get("s").turns[0].delta.ids[-12:][: len(ids)])
    assert events[-1].kind is EventKind.OVER


def test_a_close_waits_for_a_record_on_its_way(first: Harness, store: FailingStore) -> None:
    """Neither is lost, and nothing is left in the store."""
    first.open("s")
    request = first.submit(ask())
    while first.engine.busy:
        first.engine.step()
    closing = first.submit(Close(session_id="s"))
    first.run()
    assert first.last(request)["turn"] == 1
    assert first.last(closing)["closed"]
    assert not store.list("sessions")


def test_a_cancelled_turn_is_written_down(first: Harness, second: Harness) -> None:
    """As far as it came."""
    first.open("s")
    request = first.submit(ask(max_new_tokens=100))
    first.steps(5)
    first.ask(Cancel(session_id="s"))
    assert first.last(request)["finish_reason"] == "cancelled"
    replayed = second.ask(ask(turn=1))
    assert replayed["replayed"]
    assert replayed["text"] == first.last(request)["text"]


def test_records_are_json_with_a_checksum(first: Harness, store: FailingStore) -> None:
    """The first entry has what the session is."""
    first.open("s", metadata={"tenant": "a"})
    data = store.get("sessions/s/00000000")
    assert data is not None
    opened = decode(data)
    assert isinstance(opened, Opened)
    assert opened.metadata == {"tenant": "a"}
    assert set(opened.fingerprint) >= {"model", "weights", "dtype", "template", "processor"}
