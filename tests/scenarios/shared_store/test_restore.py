"""An engine with a store: what is written when, and what another engine makes of it."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.store_engines import FailingStore, ask, code
from tests.support.tiny import llava
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import OpenedEntry, session_logs
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Cancel, Close, Fork, Image, Info, Open, Rewind


def test_a_session_goes_on_elsewhere(model: Model, first: Harness, second: Harness) -> None:
    """Images, system prompt, turns: the next reply is that of the engine which has had it all along."""
    alone = Harness(model)
    second.media = first.media
    for harness in (first, alone):
        harness.open("s", [noise(1)], system="Be brief.")
        for text in ("What is it?", "And now?"):
            harness.ask(ask(text))
    here = alone.ask(ask("And then?"))
    encoded = model.encoder.num_encoded if model.encoder else 0
    there = second.ask(ask("And then?"))
    assert there["text"] == here["text"] != ""
    assert there["timing"]["restored_from"] == "store"
    assert there["turn"] == 3
    assert model.encoder is not None
    assert model.encoder.num_encoded == encoded
    reference_reply(model, second, "s", 8)


def test_the_last_event_goes_out_after_the_record(first: Harness, store: FailingStore) -> None:
    """And so does the answer to `open`; whatever has left is in the store."""
    opening = first.submit(Open(session_id="s"), creates_session=True)
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


@pytest.mark.parametrize("num_lost", [1, 2])
@pytest.mark.parametrize("turn", [None, 2])
def test_a_turn_that_was_written_without_an_answer_is_not_counted_twice(
    first: Harness, second: Harness, store: FailingStore, turn: int | None, num_lost: int
) -> None:
    """It was refused, so it is taken back, also if it is sent again without its number, and fails again."""
    first.open("s")
    first.ask(ask("One"))
    store.num_lost = num_lost
    assert code(first.ask(ask("Two", turn=turn))) == "store_unavailable"
    store.fails = True
    assert code(first.ask(ask("Two", turn=turn))) == "store_unavailable"
    store.fails = False
    assert first.ask(ask("Two", turn=turn))["turn"] == 2
    assert len(store.list("sessions/s")) == 3
    assert second.ask(ask("Three"))["turn"] == 3


def test_an_opening_that_was_written_without_an_answer_can_be_repeated(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """Its id is not in use: the client was refused."""
    store.num_lost = 1
    assert code(first.open("s")) == "store_unavailable"
    assert first.open("s")["session_id"] == "s"
    assert second.ask(ask())["turn"] == 1


def test_a_turn_that_another_server_has_shown_is_not_taken_back(
    first: Harness, second: Harness, store: FailingStore
) -> None:
    """Its client has sent it again there, and received the reply."""
    first.open("s")
    store.num_lost = 2  # so that the turn is not taken back at once
    assert code(first.ask(ask(turn=1))) == "store_unavailable"
    assert second.ask(ask(turn=1))["replayed"]
    assert code(first.ask(ask("And?"))) == "session_moved"
    assert first.ask(ask("And?"))["turn"] == 2
    assert code(second.ask(ask("Then?"))) == "session_moved"
    assert second.ask(ask("Then?"))["turn"] == 3


def test_best_effort_goes_on(model: Model, store: FailingStore, second: Harness) -> None:
    """The next turn writes what could not be written."""
    first = Harness(model, store=store, policy="best_effort")
    first.open("s")
    store.fails = True
    assert first.ask(ask("One"))["turn"] == 1
    assert first.ask(Info(session_id="s"))["saved"] is False
    assert first.engine.stats().store_failures == 1
    store.fails = False
    assert first.ask(ask("Two"))["turn"] == 2
    assert first.ask(Info(session_id="s"))["saved"] is True
    assert second.ask(Info(session_id="s"))["turns"] == 2


def test_best_effort_makes_up_for_images_too(
    model: Model, store: FailingStore, second: Harness
) -> None:
    """A turn whose image could not be written leaves no gap in the log."""
    first = Harness(model, store=store, policy="best_effort")
    second.media = first.media
    first.open("s")
    first.media["new"] = noise(3)
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
    second.media = first.media
    first.open("s", [noise(1)])
    for text in ("One", "Two", "Three"):
        first.ask(ask(text))
    assert (
        first.ask(Fork(session_id="s", new_session_id="f", at_turn=2), creates_session=True)["turn"]
        == 2
    )
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


def test_a_request_after_a_dropped_one_waits_for_the_same_search(
    first: Harness, second: Harness
) -> None:
    """A session is looked for once and taken in once, for all its requests."""
    first.open("s")
    second.engine.drop(second.submit(ask("One")))
    assert len(second.executor.jobs) == 1
    request = second.submit(ask("Two"))
    assert len(second.executor.jobs) == 1
    second.run()
    assert second.last(request)["turn"] == 1


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


def test_cancel_is_answered_when_the_turn_is_written(first: Harness) -> None:
    """Not before: until then the session is in use, and could not be rewound."""
    first.open("s")
    request = first.submit(ask(max_new_tokens=100))
    first.steps(5)
    cancels = [first.submit(Cancel(session_id="s")) for _ in range(2)]
    assert first.num_jobs
    assert not first.events.keys() & {*cancels}
    first.run()
    assert first.last(request)["finish_reason"] == "cancelled"
    for cancel in cancels:
        assert first.last(cancel) == {"session_id": "s", "cancelled": True, "turn": 1}
    assert first.ask(Cancel(session_id="s"))["cancelled"] is False


def test_the_first_entry_has_what_the_session_is(first: Harness, store: FailingStore) -> None:
    """Metadata, and the fingerprint of its model."""
    first.open("s", metadata={"tenant": "a"})
    [opened] = session_logs(store).log("s").read().entries
    assert isinstance(opened, OpenedEntry)
    assert opened.metadata == {"tenant": "a"}
    assert set(opened.fingerprint) >= {"model", "weights", "dtype", "template", "processor"}
