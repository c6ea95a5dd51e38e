"""The life of a turn: numbers, queues, retries, `continue`, cancel, close, failure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.asking import ask, busy, code
from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import llava
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.sampler import sample
from ts_stateful.language.runner import Logits
from ts_stateful.language.scheduler import Chunk
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Image, Info, Open, Prompt


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


def test_a_turn_is_not_answered_by_that_of_another_prompt(harness: Harness) -> None:
    """Two clients of a session gave their prompts the same number: one of them has to know."""
    running, other = (harness.submit(ask(text, turn=1)) for text in ("Hello", "Bye"))
    harness.run()
    assert "error" not in harness.last(running)
    assert code(harness.last(other)) == "turn_gap"
    assert code(harness.ask(ask("Bye", turn=1))) == "turn_gap"
    assert harness.ask(ask("Hello", turn=1))["replayed"]


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
    harness.media["slow"] = noise(1)
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


def test_turns_behind_one_that_nobody_came_back_for_are_gone_with_it(model: Model) -> None:
    """Their session was never open, so all of them end at the same moment."""
    harness = Harness(model, {"maxSequenceJobQueueSize": 20})
    first = harness.submit(ask(max_new_tokens=400), creates_session=True)
    requests = [first, *(harness.submit(ask()) for _ in range(19))]
    harness.steps(3)
    for request in requests:
        harness.engine.drop(request)
    harness.clock.now += 10
    harness.engine.tick()
    harness.run()
    assert not busy(harness)
    assert len(harness.engine.table) == 0


def test_a_prompt_beyond_the_window_is_refused_untouched(harness: Harness) -> None:
    """413 with what is left; the session goes on as if nothing had been asked."""
    harness.ask(ask())
    before = harness.ask(Info(session_id="s"))
    answer = harness.ask(ask("word " * 2000))
    assert code(answer) == "context_too_long"
    assert "tokens are left" in answer["error"]["message"]
    assert harness.ask(Info(session_id="s"))["tokens"] == before["tokens"]
    assert harness.ask(ask())["turn"] == 2


def test_a_system_prompt_beyond_the_window_is_named(model: Model) -> None:
    """It is what the client can change; an image would be named as that."""
    harness = Harness(dataclasses.replace(model, context_tokens=60))
    refused = harness.ask(Open(session_id="s", system="word " * 60), creates_session=True)
    assert (code(refused), refused["error"]["field"]) == ("context_too_long", "system")


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


def test_a_stop_string_before_half_a_character_ends_the_reply(harness: Harness) -> None:
    """Also where it is found with the end of the reply alone."""
    token = harness.model.tokenizer("äö").input_ids[
        0
    ]  # the first character, and a half of the other
    settings = {"logit_bias": {token: 100.0}, "max_new_tokens": 1}
    assert harness.prompt("s", "Hello", **settings)["text"] == "ä\ufffd"
    answer = harness.prompt("s", "Hello", stop="ä", **settings)
    assert (answer["text"], answer["finish_reason"]) == ("", "stop")


def test_a_stop_string_in_a_token_is_not_in_the_history(harness: Harness, model: Model) -> None:
    """What the token has before it is: the next turn goes on from the text that the client has."""
    whole = harness.ask(ask(max_new_tokens=40))["text"]
    for number, start in enumerate(range(6, 18)):
        name = f"t{number}"
        harness.open(name)
        stop = whole[start : start + 3]
        answer = harness.prompt(name, "Hello", stop=(stop,), max_new_tokens=40)
        session = harness.engine.table.get(name)
        reply = session.state.log[answer["usage"]["prompt_tokens"] :]
        assert model.tokenizer.decode(reply) == answer["text"] == whole[: whole.index(stop)]
        harness.prompt(name, "Go on.", max_new_tokens=12)
        reference_reply(model, harness, name, 12)
        harness.close(name)


def test_a_failing_row_fails_alone(harness: Harness, model: Model) -> None:
    """An exception in one turn's forward pass rolls that turn back and disturbs no other."""
    harness.open("other")
    run = harness.kind.decoding.runner.run

    def fail(chunks: list[Chunk[Sequence]]) -> Logits:
        if any(sequence.session.session_id == "s" for sequence, _ in chunks):
            raise RuntimeError("secret text of a library")
        return run(chunks)

    harness.kind.decoding.runner.run = fail  # type: ignore[method-assign, assignment]
    bad, good = harness.submit(ask()), harness.submit(Prompt(session_id="other", prompt="Hi"))
    harness.run()
    assert code(harness.last(bad)) == "internal"
    assert "secret" not in str(harness.last(bad))
    assert "error" not in harness.last(good)
    harness.kind.decoding.runner.run = run  # type: ignore[method-assign]
    assert harness.ask(ask())["turn"] == 1


def test_out_of_memory_evicts_first_and_fails_alone(harness: Harness) -> None:
    """Idle sessions lose their KV states before a turn is given up with 507."""
    harness.ask(ask())
    harness.open("other")
    attempts = []

    def exhausted(chunks: list[Chunk[Sequence]]) -> Logits:
        attempts.append(harness.engine.table.get("s").state.kv.length)
        raise torch.OutOfMemoryError("no")

    harness.kind.decoding.runner.run = exhausted  # type: ignore[method-assign, assignment]
    answer = harness.prompt("other", "Hi")
    assert code(answer) == "out_of_memory"
    assert attempts[0] > 0
    assert attempts[1] == 0


def test_the_choice_of_tokens_gets_memory_from_idle_sessions(
    harness: Harness, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is computed is not lost for it."""
    harness.ask(ask())
    harness.open("other")
    attempts = []

    def exhausted(*args: Any) -> list[int]:
        attempts.append(harness.engine.table.get("s").state.kv.length)
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("no")
        return sample(*args)

    monkeypatch.setattr("ts_stateful.language.decoding.sample", exhausted)
    answer = harness.prompt("other", "Hi", max_new_tokens=3)
    assert answer["turn"] == 1
    assert attempts[0] > 0
    assert attempts[1] == 0
    reference_reply(model, harness, "other", 3)


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
    harness = Harness(
        model, {"handler": {"deviceCacheBytes": 40 * model.forward.layout.token_bytes}}
    )
    harness.open("s")
    assert code(harness.ask(ask(max_new_tokens=100))) == "out_of_memory"
    assert "error" not in harness.ask(ask(max_new_tokens=1))
