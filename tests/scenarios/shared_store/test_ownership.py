"""Sessions between engines of one store: one of them goes on, and the others forget."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.support.clock import FakeClock
from tests.support.harness import Harness
from tests.support.memory_store import MemoryStore
from tests.support.store_engines import FailingStore, ask, code, expire
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Discard, Recall, Respond, Said
from ts_stateful.protocol.requests import Close, Continue, Fork, Info, Open, Request, Rewind

SAID = (Said("user", ("One",)),)


def test_two_owners_cannot_both_commit(first: Harness, second: Harness) -> None:
    """The loser refuses, forgets the session, and takes it over as the winner left it."""
    first.open("s")
    second.ask(ask("One"))
    lost = first.ask(ask("Two"))
    assert code(lost) == "session_moved"
    again = first.ask(ask("Two"))
    assert again["turn"] == 2
    assert code(second.ask(ask("Three"))) == "session_moved"


def test_a_session_that_was_elsewhere_is_taken_back(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """The session here lags: a turn that follows the last one there is no gap, nor while the store does not answer."""
    first.open("s")
    first.ask(ask("One", turn=1))
    second.ask(ask("Two", turn=2))
    assert first.ask(Continue(session_id="s", turn=2, after=0))["turn"] == 2
    second.ask(ask("Three", turn=3))
    store.fails = True
    assert code(first.ask(Continue(session_id="s", turn=4, after=0))) == "store_unavailable"
    late, info = first.submit(ask("Four", turn=4)), first.submit(Info(session_id="s"))
    first.run()
    assert code(first.last(late)) == "store_unavailable"
    assert "error" not in first.last(info)  # which waited with it
    store.fails = False
    assert first.ask(ask("Four", turn=4))["turn"] == 4
    assert code(first.ask(ask("Six", turn=6))) == "turn_gap"
    assert code(first.ask(Continue(session_id="s", turn=9, after=0))) == "turn_gap"


def test_a_turn_that_was_rewound_elsewhere_is_no_repeat(first: Harness, second: Harness) -> None:
    """Its prompt is answered again, in the history of the session as it is now."""
    first.open("s")
    for turn in (1, 2):
        first.ask(ask("Hello", turn=turn))
    second.ask(Rewind(session_id="s", to_turn=1))
    answer = first.ask(ask("Hello", turn=2))
    assert (answer["turn"], answer.get("replayed")) == (2, None)
    assert first.ask(ask("Hello", turn=2))["replayed"]


def test_a_turn_that_is_sent_again_needs_the_store(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """Its record here may not count any more. Nor may the turns that a fork copies."""
    first.open("s")
    for turn in (1, 2):
        first.ask(ask("Hello", turn=turn))
    second.ask(Rewind(session_id="s", to_turn=1))
    store.fails = True
    fork = Fork(session_id="s", new_session_id="f")
    refused = [first.ask(ask("Hello", turn=2)), first.ask(fork, creates_session=True)]
    assert list(map(code, refused)) == ["store_unavailable"] * 2
    store.fails = False
    assert first.ask(fork, creates_session=True)["turn"] == 1
    assert "replayed" not in first.ask(ask("Hello", turn=2))


@pytest.mark.parametrize("num_lost", [0, 2], ids=["not written", "written"])
def test_a_turn_that_was_refused_here_may_have_been_done_elsewhere(
    first: Harness, second: Harness, store: FailingStore, num_lost: int
) -> None:
    """With others after it. The server that refused it looks there too."""
    first.open("s")
    store.fails, store.num_lost = not num_lost, num_lost
    assert code(first.ask(ask("One", turn=1))) == "store_unavailable"
    store.fails = False
    assert second.ask(ask("One", turn=1))["turn"] == 1
    assert second.ask(ask("Two", turn=2))["turn"] == 2
    assert first.ask(Info(session_id="s"))["turns"] == 2
    assert second.ask(ask("Three", turn=3))["turn"] == 3
    assert first.ask(ask("Four", turn=4))["turn"] == 4


@pytest.mark.parametrize(
    "read",
    [
        Info(session_id="s"),
        Continue(session_id="s", turn=1, after=0),
        Fork(session_id="s", new_session_id="fork"),
        Recall(session_id="s", turn=1),
        Discard(session_id="s", turn=1),
        Respond(session_id="s", messages=SAID, note="n", after=0, new_session_id="branch"),
    ],
    ids=lambda read: type(read).__name__,
)
def test_a_session_that_ended_elsewhere_is_read_nowhere(
    read: Request, first: Harness, second: Harness, store: FailingStore
) -> None:
    """Although this engine has it in memory: nothing of it is shown, forked or continued."""
    first.open("s")
    first.ask(Respond(session_id="s", messages=SAID, note="n"))
    store.fails = True  # which is no reason to forget it
    assert first.ask(Info(session_id="s"))["turns"] == 1
    store.fails = False
    second.ask(Close(session_id="s", erase=True))
    assert code(first.ask(read)) == "session_closed"
    assert "s" not in first.engine.table
    first.engine.check_integrity()


def test_reads_show_what_was_done_elsewhere(first: Harness, second: Harness) -> None:
    """Turns that another engine has added, and removed."""
    first.open("s")
    first.ask(ask("One"))
    second.ask(ask("Two"))
    assert first.ask(Info(session_id="s"))["turns"] == 2
    second.ask(Rewind(session_id="s", to_turn=0))
    assert first.ask(Info(session_id="s"))["turns"] == 0


def test_the_id_of_a_closed_session_is_used_again_elsewhere(
    first: Harness, second: Harness
) -> None:
    """The engine that closed the earlier session goes on with the next one, as every other engine does."""
    first.open("s")
    first.ask(Close(session_id="s"))
    assert code(second.ask(ask("One"))) == "session_closed"
    second.open("s")
    second.ask(ask("One"))
    assert first.ask(Info(session_id="s"))["turns"] == 1
    assert first.ask(ask("Two"))["turn"] == 2
    first.engine.check_integrity()


@pytest.mark.parametrize("positions", [(1,), (3,), (2, 3), (1, 3)])
def test_entries_of_a_closed_session_that_come_late_do_not_count(
    first: Harness, model: Model, store: FailingStore, positions: tuple[int, ...]
) -> None:
    """The store carries them out when the id is that of another session: right after its log, or after a hole."""
    second = Harness(model, store=store, first_id=100)
    first.open("s")
    for text in ("One", "Two", "Three"):
        first.ask(ask(text))
    keys = [f"sessions/s/{position:08}" for position in positions]
    late = store.get_many(keys)
    first.ask(Close(session_id="s", erase=True))
    second.open("s")
    for key, data in zip(keys, late, strict=True):
        assert data is not None
        store.create(key, data)
    for turn in range(1, 5):
        reply = first.ask(ask("More"))
        if "error" in reply:  # it had read the session before
            reply = first.ask(ask("More"))
        assert reply["turn"] == turn
    assert len(store.list("sessions/s")) == 5


def test_a_closed_session_stays_closed_until_it_is_removed(
    first: Harness, store: FailingStore
) -> None:
    """Although the store did not take the removal, and still has the log."""
    first.open("s")
    store.fails = True
    assert first.ask(Close(session_id="s"))["closed"]
    store.fails = False
    assert store.list("sessions/s")
    assert code(first.ask(ask("One"))) == "session_closed"
    first.engine.check_integrity()


def test_an_id_that_was_erased_elsewhere_is_opened_again(first: Harness, second: Harness) -> None:
    """By the server that still has its session in memory; also by a first prompt."""
    for _ in range(2):
        first.open("s")
        second.ask(ask("One"))
        second.ask(Close(session_id="s", erase=True))
    assert first.ask(ask("Hello"), creates_session=True)["turn"] == 1


def test_an_id_is_opened_once(first: Harness, second: Harness) -> None:
    """By any engine; every request that opens it a second time is refused."""
    first.open("s")
    first.open("other")
    assert code(second.open("s")) == "session_exists"
    assert second.ask(Info(session_id="s"))["turns"] == 0
    assert (
        code(second.ask(structs.replace(ask(), session_id="other"), creates_session=True))
        == "session_exists"
    )
    assert code(second.open("s")) == "session_exists"


def test_the_id_of_a_fork_is_opened_once(first: Harness, second: Harness) -> None:
    """A request that waits for a fork that could not be made does not find it."""
    first.open("s")
    first.open("taken")
    second.ask(Info(session_id="s"))
    fork = second.submit(Fork(session_id="s", new_session_id="taken"), creates_session=True)
    waiting = second.submit(structs.replace(ask(), session_id="taken"))
    second.run()
    assert code(second.last(waiting)) == "session_not_found"
    refused = second.last(fork)["error"]
    assert (refused["code"], refused["field"]) == ("session_exists", "new_session_id")
    assert second.ask(structs.replace(ask(), session_id="taken"))["turn"] == 1


OPENINGS = Open(session_id="s"), Fork(session_id="source", new_session_id="s")


@pytest.mark.parametrize("opening", OPENINGS)
def test_an_id_whose_first_write_fails_is_free(
    opening: Open | Fork, first: Harness, store: FailingStore
) -> None:
    """A client that repeats the request meanwhile gets no `session_exists`, by which it would take the session for open."""
    first.open("source")

    def submit() -> str:
        request = first.submit(opening, creates_session=True)
        first.hear()
        if isinstance(opening, Fork):  # it looks for turns of its source first
            first.work(-1)
            first.hear()
        elif first.engine.busy:
            first.engine.step()
        return request

    begun, repeated = submit(), submit()
    store.fails = True
    first.work(0)
    store.fails = False
    first.run()
    assert code(first.last(begun)) == "store_unavailable"
    assert first.last(repeated)["session_id"] == "s"
    assert first.ask(ask())["turn"] == 1


@pytest.mark.parametrize("opening", OPENINGS)
def test_the_id_of_an_expired_session_is_free(opening: Open | Fork, first: Harness) -> None:
    """At once, not when the engine looks for expired sessions next."""
    first.open("s")
    first.clock.now += 30
    first.open("source")
    first.clock.now += 31
    assert first.ask(opening, creates_session=True)["session_id"] == "s"


def test_an_expired_session_is_not_taken_over(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """Its idle time goes on while no engine has it, and a search for it leaves nothing in the store."""
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
    assert second.ask(ask(), is_retry=True)["turn"] == 1


def test_a_turn_in_progress_at_the_end_of_its_session_is_written(model: Model) -> None:
    """The store still has the turns before it."""
    clock = FakeClock()
    store = MemoryStore(clock)
    harness = Harness(model, store=store)
    harness.open("s", ttl_s=30.0)
    request = harness.submit(ask())
    harness.steps(2)
    for one in (clock, harness.clock):
        one.now += 31
    store.sweep()
    harness.run()
    assert harness.last(request)["turn"] == 1


def test_a_clock_that_is_ahead_makes_no_session_younger_than_new(
    first: Harness, second: Harness
) -> None:
    """Another machine's clock may be."""
    first.clock.now += 30
    first.open("s")
    found = second.ask(Info(session_id="s"))
    assert (found["age_s"], found["idle_s"]) == (0, 0)
    assert second.ask(ask())["turn"] == 1


def test_what_is_left_behind_of_a_session_ends_alone(
    model: Model, first: Harness, second: Harness, store: FailingStore
) -> None:
    """It expires where it is not used any more; its log stays for the engines that go on with it."""
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
    """Although nothing was written there yet; the engine that uses it last removes it."""
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
    """The store, in which other owners are looked for, does not have it."""
    first = Harness(model, store=store, policy="best_effort")
    store.fails = True
    first.open("s")
    expire(first)
    store.fails = False
    assert code(first.ask(ask())) == "session_expired"


def test_a_session_that_was_only_looked_at_here_goes_on_elsewhere(
    first: Harness, second: Harness
) -> None:
    """An adopted session expires alone too."""
    first.open("s")
    second.ask(Info(session_id="s"))
    expire(second)
    assert first.ask(ask())["turn"] == 1
