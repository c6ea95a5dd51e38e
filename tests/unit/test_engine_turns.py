"""The life of a turn: numbers, queues, retries, `continue`, cancel, close, failure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.harness import Harness
from tests.support.pictures import noise
from tests.support.tiny import llama, llava
from ts_stateful.engine.model import Model
from ts_stateful.engine.runner import Logits
from ts_stateful.engine.scheduler import Chunk
from ts_stateful.engine.sequence import Sequence
from ts_stateful.errors import MediaInvalid
from ts_stateful.events import EventKind
from ts_stateful.protocol import Cancel, Close, Continue, Hello, Image, Info, Open, Prompt


@pytest.fixture(scope="module")
def model() -> Model:
    """One model for all tests here: they look at requests, not at tokens."""
    return llama()


@pytest.fixture
def harness(model: Model) -> Harness:
    """An engine with a session `s`."""
    harness = Harness(model)
    harness.open("s")
    return harness


def code(document: dict[str, Any]) -> str:
    error = document["error"]
    return str(error["code"])


def busy(harness: Harness) -> bool:
    return harness.engine.busy


def ask(text: str = "Hello", **fields: Any) -> Prompt:
    return Prompt(
        session_id="s", prompt=text, **{"max_new_tokens": 12, "ignore_eos": True, **fields}
    )


def test_a_stream_is_the_same_text_in_pieces(harness: Harness) -> None:
    """The pieces of a streamed reply, put together, are the unstreamed reply."""
    request = harness.submit(ask(stream=True))
    harness.run()
    streamed = "".join(harness.parts(request)) + harness.last(request)["text"]
    assert len(harness.parts(request)) > 1
    assert harness.ask(ask(turn=1))["text"] == streamed


def test_pieces_of_a_stream_have_a_distance(model: Model) -> None:
    """The first piece goes out at once, the next when `streamIntervalSec` is over, with all that there is by then."""
    harness = Harness(model, {"handler": {"streamIntervalSec": 1.0}})
    harness.open("s")
    request = harness.submit(ask(stream=True, max_new_tokens=40))
    harness.steps(20)
    (first,) = harness.parts(request)
    harness.clock.now += 1.0
    harness.steps(8)
    _, second = harness.parts(request)
    assert len(second) > len(first)
    harness.run()
    assert first + second + harness.last(request)["text"] == harness.ask(ask(turn=1))["text"]


def test_a_committed_turn_is_answered_from_its_record(harness: Harness) -> None:
    """The same `turn` twice is applied once."""
    first = harness.ask(ask(turn=1))
    again = harness.ask(ask(turn=1))
    assert again == {**first, "replayed": True}
    assert harness.ask(Info(session_id="s"))["turns"] == 1


def test_a_retry_attaches_to_the_turn_in_progress(harness: Harness) -> None:
    """A retried stream gets the text from its beginning."""
    first = harness.submit(ask(stream=True, turn=1))
    harness.steps(8)
    second = harness.submit(ask(stream=True, turn=1))
    harness.run()
    texts = ["".join(harness.parts(r)) + harness.last(r)["text"] for r in (first, second)]
    assert texts[0] == texts[1]
    assert harness.ask(Info(session_id="s"))["turns"] == 1


def test_a_retry_attaches_to_a_turn_that_waits(harness: Harness) -> None:
    """A turn in the queue is found by its number, too."""
    harness.submit(ask(turn=1))
    requests = [harness.submit(ask("And?", turn=2)) for _ in range(2)]
    harness.run()
    assert harness.last(requests[0]) == harness.last(requests[1])
    assert harness.ask(Info(session_id="s"))["turns"] == 2


def test_a_number_that_skips_ahead_is_a_gap(harness: Harness) -> None:
    """Turn 3 cannot come before turn 2."""
    answer = harness.ask(ask(turn=2))
    assert code(answer) == "turn_gap"
    assert answer["error"]["field"] == "turn"
    assert harness.ask(ask(turn=1))["turn"] == 1


def test_prompts_of_one_session_run_in_their_order(harness: Harness) -> None:
    """Two prompts at once: the second sees the first one's turn, and nothing is interleaved."""
    one, two = harness.submit(ask("One")), harness.submit(ask("Two"))
    harness.steps(5)
    assert not any(e.kind is not EventKind.ACCEPTED for e in harness.events.get(two, []))
    harness.run()
    assert (harness.last(one)["turn"], harness.last(two)["turn"]) == (1, 2)


def test_a_prompt_whose_image_loads_is_not_overtaken() -> None:
    """A later prompt waits for an earlier one that waits for its image."""
    harness = Harness(llava())
    harness.open("s")
    harness.pictures["slow"] = noise(1)
    one = harness.submit(ask("One", images=(Image(url="slow"),)))
    two = harness.submit(ask("Two"))
    harness.run()
    assert (harness.last(one)["turn"], harness.last(two)["turn"]) == (1, 2)


def test_a_full_queue_refuses_the_next_prompt(harness: Harness) -> None:
    """Beyond `maxSequenceJobQueueSize` waiting prompts: 429, and the others are served."""
    accepted = [harness.submit(ask()) for _ in range(3)]
    refused = harness.ask(ask())
    assert code(refused) == "queue_full"
    assert refused["error"]["retry_after_s"] > 0
    assert [harness.last(request)["turn"] for request in accepted] == [1, 2, 3]


def test_sessions_make_progress_side_by_side(harness: Harness) -> None:
    """A short turn ends before a long one that began earlier."""
    harness.open("other")
    long = harness.submit(ask(max_new_tokens=200))
    harness.steps(5)
    short = harness.submit(Prompt(session_id="other", prompt="Hi", max_new_tokens=3))
    harness.steps(12)
    assert harness.last(short)["turn"] == 1
    assert not any(event.kind is EventKind.LAST for event in harness.events[long])


def test_continue_gives_what_is_behind_the_characters(harness: Harness) -> None:
    """A pulled turn is the concatenation of what `continue` gives, before and after its commit."""
    request = harness.submit(ask(stream=True), pull=True)
    harness.pump()
    first = harness.last(request)
    assert first == {"text": "", "session_id": "s", "turn": 1, "next": 0, "more": True}
    text, last = "", first
    while last.get("more"):
        pull = harness.submit(Continue(session_id="s", turn=1, after=len(text)))
        harness.steps(1)
        harness.clock.now += 0.011
        harness.engine.tick()
        last = harness.last(pull)
        text += last["text"]
        assert last["next"] == len(text)
    assert last["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 12
    assert harness.ask(Continue(session_id="s", turn=1, after=3))["text"] == text[3:]


def test_continue_waits_a_moment_for_the_next_token(harness: Harness) -> None:
    """It is answered as soon as there is text, or after some milliseconds without."""
    harness.submit(ask(max_new_tokens=50))
    harness.pump()
    pull = harness.submit(Continue(session_id="s", turn=1))
    assert pull not in harness.events
    harness.engine.tick()
    assert harness.engine.next_deadline() == pytest.approx(harness.clock.now + 0.010)
    harness.clock.now += 0.010
    harness.engine.tick()
    assert harness.last(pull) == {"text": "", "next": 0, "more": True}


def test_continue_of_a_turn_that_does_not_exist_is_a_gap(harness: Harness) -> None:
    """There is nothing to continue."""
    assert code(harness.ask(Continue(session_id="s", turn=1))) == "turn_gap"


def test_continue_keeps_a_pulled_turn_alive(harness: Harness) -> None:
    """Each pull starts the time anew after which an abandoned turn is rolled back."""
    harness.submit(ask(max_new_tokens=400), pull=True)
    for _ in range(4):
        harness.steps(2)
        harness.clock.now += 8
        harness.engine.tick()
        harness.submit(Continue(session_id="s", turn=1))
        harness.clock.now += 0.02
        harness.engine.tick()
    assert busy(harness)
    harness.clock.now += 10.1
    harness.engine.tick()
    assert not busy(harness)
    gone = harness.ask(Continue(session_id="s", turn=1))
    assert "rolled back" in gone["error"]["message"]


def test_a_dropped_turn_can_be_taken_up_again(harness: Harness) -> None:
    """Within `reattachSec` a retry finds the turn still running."""
    harness.engine.drop(harness.submit(ask(turn=1, max_new_tokens=30)))
    harness.steps(5)
    harness.clock.now += 9
    harness.engine.tick()
    answer = harness.ask(ask(turn=1, max_new_tokens=30))
    assert answer["usage"]["completion_tokens"] == 30
    assert "replayed" not in answer


def test_time_stands_still_while_the_worker_is_away(harness: Harness) -> None:
    """Nobody can come back then; when it is back, clients have `reattachSec` again."""
    harness.engine.drop(harness.submit(ask(max_new_tokens=400)))
    harness.pump()
    harness.engine.set_away(True)
    harness.clock.now += 50
    harness.engine.tick()
    assert busy(harness)
    harness.engine.set_away(False)
    harness.clock.now += 9
    harness.engine.tick()
    assert busy(harness)
    harness.clock.now += 1
    harness.engine.tick()
    assert not busy(harness)


def test_cancel_ends_the_turn_and_keeps_its_text(harness: Harness) -> None:
    """What was generated is committed with `finish_reason` `cancelled`."""
    request = harness.submit(ask(max_new_tokens=300))
    harness.steps(20)
    assert harness.ask(Cancel(session_id="s")) == {"session_id": "s", "cancelled": True, "turn": 1}
    answer = harness.last(request)
    assert answer["finish_reason"] == "cancelled"
    assert 0 < answer["usage"]["completion_tokens"] < 300
    assert harness.ask(ask())["turn"] == 2


def test_cancel_before_the_first_token_commits_an_empty_reply(harness: Harness) -> None:
    """A turn that is cancelled while it prefills has happened, with nothing said."""
    request = harness.submit(ask("word " * 100))
    harness.steps(1)
    harness.ask(Cancel(session_id="s"))
    assert harness.last(request)["text"] == ""
    assert harness.ask(ask())["turn"] == 2


def test_cancel_without_a_turn_says_so(harness: Harness) -> None:
    """There was nothing to cancel."""
    assert harness.ask(Cancel(session_id="s"))["cancelled"] is False


def test_close_cancels_what_runs_and_refuses_what_waits(harness: Harness) -> None:
    """Everybody gets an answer, and the session is gone."""
    running, waiting = harness.submit(ask(max_new_tokens=300)), harness.submit(ask())
    harness.steps(5)
    assert harness.ask(Close(session_id="s")) == {"session_id": "s", "closed": True}
    assert harness.last(running)["finish_reason"] == "cancelled"
    assert code(harness.last(waiting)) == "session_closed"
    assert code(harness.ask(ask())) == "session_closed"
    assert harness.engine.table.device_bytes == 0


def test_four_different_errors_for_four_kinds_of_absence(harness: Harness) -> None:
    """Unknown, expired and closed sessions are told apart, and a live one is not opened twice."""
    assert code(harness.ask(Prompt(session_id="never", prompt="x"))) == "session_not_found"
    assert code(harness.ask(Open(session_id="s"), opens=True)) == "session_exists"
    harness.close("s")
    assert code(harness.ask(ask())) == "session_closed"
    harness.open("t")
    harness.clock.now += 61
    assert code(harness.ask(Prompt(session_id="t", prompt="x"))) == "session_expired"


def test_a_prompt_without_a_session_opens_one(model: Model) -> None:
    """Its events carry until when the session lives."""
    harness = Harness(model)
    request = harness.submit(
        Prompt(session_id="made", prompt="Hi", stream=True, max_new_tokens=3), opens=True
    )
    harness.run()
    assert harness.last(request)["session_id"] == "made"
    assert {event.opened_until for event in harness.events[request]} == {1_700_000_600}


def test_an_open_that_fails_was_never_there() -> None:
    """A session whose image could not be had does not exist, and what waited for it learns that."""
    harness = Harness(llava())

    def refuse(*_: object) -> Any:
        raise MediaInvalid("not an image", field="images[0].url")

    harness.engine._turns._load_images = refuse
    request = harness.submit(Open(session_id="s", images=(Image(url="x"),)), opens=True)
    waiting = harness.submit(ask())
    harness.run()
    assert harness.last(request)["error"]["field"] == "images[0].url"
    assert code(harness.last(waiting)) == "session_not_found"
    assert code(harness.ask(ask())) == "session_not_found"
    assert "error" not in harness.open("s")


def test_too_many_images_are_refused_before_any_fetch() -> None:
    """The count is checked first."""
    harness = Harness(llava())
    many = tuple(Image(url=str(index)) for index in range(9))
    assert code(harness.ask(Open(session_id="s", images=many), opens=True)) == "invalid_request"
    assert harness.executor.jobs == []


def test_a_model_that_sees_nothing_takes_no_images(harness: Harness) -> None:
    """The error names the field."""
    answer = harness.ask(ask(images=(Image(url="x"),)))
    assert answer["error"]["field"] == "images"


def test_a_prompt_beyond_the_window_is_refused_untouched(harness: Harness) -> None:
    """413 with what is left; the session goes on as if nothing had been asked."""
    harness.ask(ask())
    before = harness.ask(Info(session_id="s"))
    answer = harness.ask(ask("word " * 2000))
    assert code(answer) == "context_too_long"
    assert "tokens are left" in answer["error"]["message"]
    assert harness.ask(Info(session_id="s"))["tokens"] == before["tokens"]
    assert harness.ask(ask())["turn"] == 2


def test_generation_stops_at_the_end_of_the_window(model: Model) -> None:
    """A reply that would outgrow the window ends with `length`."""
    harness = Harness(dataclasses.replace(model, context_tokens=60))
    harness.open("s")
    usage = harness.ask(ask(max_new_tokens=10_000))["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 60


def test_a_stop_string_ends_the_reply_before_it(harness: Harness) -> None:
    """Also where it spans tokens; nothing of it is ever streamed."""
    whole = harness.ask(ask(max_new_tokens=40))["text"]
    stop = whole[10:15]
    harness.open("t")
    request = harness.submit(
        Prompt(
            session_id="t", prompt="Hello", stop=stop, stream=True, max_new_tokens=40,
            ignore_eos=True,
        )
    )  # fmt: skip
    harness.run()
    text = "".join(harness.parts(request)) + harness.last(request)["text"]
    assert text == whole[: whole.index(stop)]
    assert harness.last(request)["finish_reason"] == "stop"


def test_a_failing_row_fails_alone(harness: Harness, model: Model) -> None:
    """An exception in one turn's forward pass rolls that turn back and disturbs no other."""
    harness.open("other")
    run = harness.engine._runner.run

    def fail(chunks: list[Chunk[Sequence]]) -> Logits:
        if any(sequence.session.session_id == "s" for sequence, _ in chunks):
            raise RuntimeError("secret text of a library")
        return run(chunks)

    harness.engine._runner.run = fail  # type: ignore[method-assign, assignment]
    bad, good = harness.submit(ask()), harness.submit(Prompt(session_id="other", prompt="Hi"))
    harness.run()
    assert code(harness.last(bad)) == "internal"
    assert "secret" not in str(harness.last(bad))
    assert "error" not in harness.last(good)
    harness.engine._runner.run = run  # type: ignore[method-assign]
    assert harness.ask(ask())["turn"] == 1


def test_out_of_memory_evicts_first_and_fails_alone(harness: Harness) -> None:
    """Idle sessions lose their KV states before a turn is given up with 507."""
    harness.ask(ask())
    harness.open("other")
    attempts = []

    def exhausted(chunks: list[Chunk[Sequence]]) -> Logits:
        attempts.append(harness.engine.table.get("s").state.kv.length)
        raise torch.OutOfMemoryError("no")

    harness.engine._runner.run = exhausted  # type: ignore[method-assign, assignment]
    answer = harness.prompt("other", "Hi")
    assert code(answer) == "out_of_memory"
    assert attempts[0] > 0
    assert attempts[1] == 0


def test_the_byte_budget_evicts_the_least_recently_used(model: Model) -> None:
    """A budget for two sessions serves eight: the others are rebuilt when they come back."""
    probe = Harness(model)
    probe.open("s")
    probe.prompt("s", "word " * 40, max_new_tokens=4)
    size = probe.engine.table.device_bytes
    harness = Harness(model, {"handler": {"deviceCacheBytes": int(size * 2.5)}})
    for round_ in (1, 2):
        for index in range(8):
            name = f"n{index}"
            if round_ == 1:
                harness.open(name)
            answer = harness.prompt(name, "word " * 40, max_new_tokens=4)
            assert answer["turn"] == round_
        assert harness.engine.table.device_bytes <= size * 2.5
    assert harness.ask(Info(session_id="n0"))["residency"] == "record"
    assert harness.ask(Info(session_id="n7"))["residency"] == "device"


def test_a_turn_larger_than_the_budget_is_refused_before_any_work(model: Model) -> None:
    """Admission is by bytes."""
    harness = Harness(model, {"handler": {"deviceCacheBytes": 40 * model.forward.layout.token_bytes}})
    harness.open("s")
    assert code(harness.ask(ask(max_new_tokens=100))) == "out_of_memory"
    assert "error" not in harness.ask(ask(max_new_tokens=1))


def test_hello_tells_who_serves(harness: Harness) -> None:
    """And within which limits; it lists no sessions."""
    hello = harness.ask(Hello())
    assert hello["profile"] == "continuous"
    assert hello["limits"]["max_sessions"] == 8


def test_expiry_runs_by_itself(harness: Harness) -> None:
    """A session that nobody uses is gone when its time is up, and its memory with it."""
    harness.ask(ask())
    assert harness.engine.table.device_bytes > 0
    harness.engine.tick()
    while len(harness.engine.table):
        before = harness.clock.now
        harness.clock.now = harness.engine.next_deadline()
        assert before < harness.clock.now <= before + 1
        harness.engine.tick()
    assert harness.clock.now == pytest.approx(1060)
    assert harness.engine.table.device_bytes == 0
