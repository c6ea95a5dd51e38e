"""Turns whose session is theirs alone: it ends with the answer, and nothing of it is left but what others can use."""

from __future__ import annotations

from tests.support.harness import Harness
from tests.support.pictures import noise
from tests.support.tiny import llama, llava
from ts_stateful.protocol.requests import Image, Info, Prompt
from ts_stateful.protocol.response_format import JsonObject


def test_its_session_ends_with_the_answer() -> None:
    """The id is then as unknown as before, and its place free."""
    harness = Harness(llama(), {"maxNumSequence": 1})
    for _ in range(3):
        answer = harness.ask(
            Prompt(session_id="a", prompt="hi"), creates_session=True, ephemeral=True
        )
        assert answer["finish_reason"] in ("stop", "length")
        assert harness.ask(Info(session_id="a"))["error"]["code"] == "session_not_found"
    assert len(harness.engine.table) == 0


def test_a_failure_leaves_nothing_either() -> None:
    """As of any request that opens a session."""
    harness = Harness(llama())
    long = Prompt(session_id="a", prompt="hi " * 10_000)
    assert (
        harness.ask(long, creates_session=True, ephemeral=True)["error"]["code"]
        == "context_too_long"
    )
    assert len(harness.engine.table) == 0


def test_a_thread_that_cannot_start_costs_one_turn() -> None:
    """Its place is free for the next one."""
    harness = Harness(llama(), {"maxNumSequence": 1})
    prompt = Prompt(session_id="a", prompt="hi", response_format=JsonObject(), max_new_tokens=4)
    harness.executor.is_out_of_threads = True
    refused = harness.ask(prompt, creates_session=True, ephemeral=True)
    assert refused["error"]["code"] == "internal"
    assert len(harness.engine.table) == 0
    harness.executor.is_out_of_threads = False
    assert "error" not in harness.ask(prompt, creates_session=True, ephemeral=True)


def test_a_thread_that_cannot_start_after_an_image_was_read_costs_one_turn() -> None:
    """As before it was read; the engine's loop goes on."""
    harness = Harness(llava(), {"maxNumSequence": 1})
    harness.media["p"] = noise(1)
    prompt = Prompt(
        session_id="a", prompt="hi", images=(Image(url="p"),), response_format=JsonObject()
    )
    request = harness.submit(prompt, creates_session=True, ephemeral=True)
    harness.executor.run()
    harness.executor.is_out_of_threads = True
    harness.run()
    assert harness.last(request)["error"]["code"] == "internal"
    assert len(harness.engine.table) == 0


def test_without_its_client_it_ends_at_once() -> None:
    """Nobody could come back to it."""
    harness = Harness(llama())
    prompt = Prompt(session_id="a", prompt="hi", max_new_tokens=500, ignore_eos=True)
    request = harness.submit(prompt, creates_session=True, ephemeral=True)
    harness.steps(3)
    harness.engine.drop(request)
    harness.engine.tick()
    assert not harness.engine.busy
    assert len(harness.engine.table) == 0
    harness.engine.check_integrity()


def test_its_images_are_there_for_the_next_one() -> None:
    """An image that is shown again is not encoded again."""
    model = llava()
    harness = Harness(model)
    assert model.encoder is not None
    before = model.encoder.num_encoded
    harness.media["p"] = noise(1)
    for name in ("a", "b"):
        prompt = Prompt(session_id=name, prompt="hi", images=(Image(url="p"),), max_new_tokens=2)
        assert "error" not in harness.ask(prompt, creates_session=True, ephemeral=True)
    assert model.encoder.num_encoded == before + 1
