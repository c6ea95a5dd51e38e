"""Sessions with clips of audio, beyond one engine."""

from __future__ import annotations

from tests.support.harness import Harness, reference_reply
from tests.support.sounds import sound
from tests.support.store_engines import FailingStore, ask, code
from tests.support.tiny.hearing import glm_asr, qwen2_audio
from ts_stateful.protocol.requests import Audio


def test_a_session_with_clips_goes_on_elsewhere() -> None:
    """The other engine reads the embeddings from the store: its tower does not run."""
    model, store = qwen2_audio(), FailingStore()
    first, second = (Harness(model, store=store) for _ in range(2))
    second.media = first.media
    first.open("s", [sound(1)], system="Be brief.")
    first.media["later"] = sound(2, 0.8)
    first.ask(ask("What is it?", audio=(Audio(url="later"),)))
    assert model.encoder is not None
    before = model.encoder.num_encoded
    there = second.ask(ask("And then?"))
    assert there["timing"]["restored_from"] == "store"
    assert model.encoder.num_encoded == before
    reference_reply(model, second, "s", 8)


def test_an_engine_of_another_model_refuses_it() -> None:
    """As any session of another model."""
    store = FailingStore()
    first, second = Harness(qwen2_audio(), store=store), Harness(glm_asr(), store=store)
    first.open("s", [sound(1)])
    first.ask(ask("What is it?"))
    assert code(second.ask(ask("And then?"))) == "session_not_found"


def test_clips_that_are_kept_out_of_the_store() -> None:
    """With `content: text` another engine continues where it has them from another session."""
    model, store = qwen2_audio(), FailingStore()
    first, second = (Harness(model, store=store, content="text") for _ in range(2))
    second.media = first.media
    first.open("s", [sound(1)])
    first.ask(ask("What is it?"))
    assert code(second.ask(ask("And then?"))) == "session_not_found"
    third = Harness(model, store=store, content="text")
    third.open("other", [sound(1)])
    third.media = first.media
    assert third.ask(ask("And then?"))["turn"] == 2
    reference_reply(model, third, "s", 8)
