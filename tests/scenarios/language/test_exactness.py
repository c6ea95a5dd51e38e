"""A session's reply is what stock `generate` makes of the whole transcript, whatever happened in between."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, REWRITING, llama, llava
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Cancel, Image, Open, Prompt

QUESTIONS = ("What color is the circle?", "And the square?", "Tell me a story, äöü 🙂, please.")
NEW_TOKENS = 16


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Model:
    """Every architecture in turn."""
    return MODELS[request.param]()


def opened(model: Model, **config: object) -> Harness:
    harness = Harness(model, dict(config))
    pictures = [noise(1), noise(2, 80, 30)] if model.encoder else []
    assert "error" not in harness.open("s", pictures)
    return harness


def test_every_turn_equals_generate_on_the_whole_transcript(model: Model) -> None:
    """Turn after turn, the reply is the one that a fresh run over everything would have given."""
    harness = opened(model)
    for number, question in enumerate(QUESTIONS, start=1):
        answer = harness.prompt("s", question, max_new_tokens=NEW_TOKENS)
        assert answer["turn"] == number
        reference_reply(model, harness, "s", NEW_TOKENS)


def test_the_first_context_is_what_the_processor_would_have_made(model: Model) -> None:
    """The ids of the first turn are those of the rendered conversation, tokenized at once."""
    harness = opened(model)
    harness.prompt("s", QUESTIONS[0], max_new_tokens=1)
    session = harness.engine.table.get("s")
    prompt = session.state.log[: session.state.turns[0].usage.prompt_tokens]
    decoded = model.tokenizer.decode(prompt)
    for image in session.state.images:
        expansion = model.tokenizer.decode(image.ids)
        assert expansion in decoded
    assert QUESTIONS[0] in decoded


def test_only_the_new_tokens_are_computed(model: Model) -> None:
    """From turn two on, everything but the last token of the history comes from the cache."""
    harness = opened(model)
    first = harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS)
    second = harness.prompt("s", QUESTIONS[1], max_new_tokens=NEW_TOKENS)
    log = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= log - 1


def test_the_vision_tower_runs_once_an_image() -> None:
    """No turn encodes an image again, not even when the KV states were lost."""
    model = llava()
    harness = opened(model)
    assert model.encoder is not None
    before = model.encoder.num_encoded
    for question in QUESTIONS:
        harness.prompt("s", question, max_new_tokens=4)
        harness.engine.table.evict_idle()
    assert model.encoder.num_encoded == before


def test_a_session_whose_kv_was_dropped_goes_on_exactly(model: Model) -> None:
    """After an eviction the next turn is rebuilt from the log, and says so."""
    harness = opened(model)
    harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS)
    harness.engine.table.evict_idle()
    assert harness.engine.table.get("s").state.device_bytes == 0
    answer = harness.prompt("s", QUESTIONS[1], max_new_tokens=NEW_TOKENS)
    assert answer["timing"]["restored_from"] == "replay"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    reference_reply(model, harness, "s", NEW_TOKENS)


def test_images_may_come_with_any_prompt() -> None:
    """A later image is placed where its prompt is, and seen exactly."""
    model = llava()
    harness = opened(model)
    harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS)
    harness.media["later"] = noise(3)
    later = Prompt(
        session_id="s", prompt="And this?", images=(Image(url="later"),), max_new_tokens=NEW_TOKENS
    )
    assert harness.ask(later)["turn"] == 2
    reference_reply(model, harness, "s", NEW_TOKENS)
    harness.engine.table.evict_idle()
    harness.prompt("s", QUESTIONS[2], max_new_tokens=NEW_TOKENS)
    reference_reply(model, harness, "s", NEW_TOKENS)


def test_other_sessions_change_nothing(model: Model) -> None:
    """Turns that run side by side, of different lengths and starts, are each what they would be alone."""
    harness = opened(model)
    for name in ("a", "b", "c"):
        harness.open(name)
    requests = []
    for delay, name in enumerate(("s", "a", "b", "c")):
        prompt = Prompt(session_id=name, prompt=QUESTIONS[delay % 3], max_new_tokens=NEW_TOKENS)
        requests.append(harness.submit(prompt))
        harness.steps(2)
    harness.run()
    assert all("error" not in harness.last(request) for request in requests)
    reference_reply(model, harness, "s", NEW_TOKENS)


def test_a_template_that_rewrites_history_keeps_the_common_prefix() -> None:
    """Where the template changes earlier turns, what is still the same is kept and the rest computed."""
    model = llama(REWRITING)
    harness = opened(model)
    for question in QUESTIONS:
        answer = harness.prompt("s", question, max_new_tokens=NEW_TOKENS)
        reference_reply(model, harness, "s", NEW_TOKENS)
    assert (
        0
        < answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        < answer["usage"]["prompt_tokens"]
    )


def test_a_cancelled_turn_is_part_of_the_transcript(model: Model) -> None:
    """What was generated before a cancel is kept, and the next turn builds on it exactly."""
    harness = opened(model)
    request = harness.submit(Prompt(session_id="s", prompt=QUESTIONS[0], max_new_tokens=100))
    harness.steps(20)
    assert harness.ask(Cancel(session_id="s"))["cancelled"]
    assert harness.last(request)["finish_reason"] == "cancelled"
    harness.prompt("s", QUESTIONS[1], max_new_tokens=NEW_TOKENS)
    reference_reply(model, harness, "s", NEW_TOKENS)


def test_a_turn_that_nobody_waits_for_leaves_no_trace(model: Model) -> None:
    """When the client is gone for longer than `reattachSec` the session stands where it stood before."""
    harness = opened(model)
    harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS)
    log = list(harness.engine.table.get("s").state.log)
    request = harness.submit(Prompt(session_id="s", prompt=QUESTIONS[1], max_new_tokens=900))
    harness.steps(8)
    harness.engine.drop(request)
    harness.clock.now += 10.1
    harness.engine.tick()
    harness.pump()
    assert not harness.engine.busy
    assert harness.engine.table.get("s").state.log == log
    harness.prompt("s", QUESTIONS[1], max_new_tokens=NEW_TOKENS)
    reference_reply(model, harness, "s", NEW_TOKENS)


def test_control_tokens_in_a_text_are_text(model: Model) -> None:
    """A user who spells out `<|im_end|>` or `<image>` cannot end a turn or fake an image."""
    harness = opened(model)
    added = [token.content for token in model.tokenizer.added_tokens_decoder.values()]
    specials = [token for token in added if not token.isspace()]
    text = f"ignore {' '.join(specials)} this"
    answer = harness.prompt("s", text, max_new_tokens=NEW_TOKENS)
    assert "error" not in answer
    log = harness.engine.table.get("s").state.log[: answer["usage"]["prompt_tokens"]]
    assert text.replace(" ", "") in model.tokenizer.decode(log).replace(" ", "")
    control_ids = [model.tokenizer.convert_tokens_to_ids(special) for special in specials]
    plain = Harness(model)
    plain.open("s", harness.media.values() if model.encoder else [])
    other = plain.prompt("s", "ignore this", max_new_tokens=1)
    expected = plain.engine.table.get("s").state.log[: other["usage"]["prompt_tokens"]]
    assert [i for i in log if i in control_ids] == [i for i in expected if i in control_ids]
    reference_reply(model, harness, "s", NEW_TOKENS)


def test_sampling_depends_on_seed_and_position_alone(model: Model) -> None:
    """The same seed gives the same text, alone or beside others; another seed another one."""
    alone, crowded = opened(model), opened(model)
    wanted = Prompt(
        session_id="s", prompt="Go", max_new_tokens=NEW_TOKENS, temperature=1.0, top_k=50, seed=7
    )
    expected = alone.ask(wanted)["text"]
    crowded.open("x")
    crowded.submit(Prompt(session_id="x", prompt="Noise", temperature=2.0, seed=9))
    crowded.steps(3)
    assert crowded.ask(wanted)["text"] == expected
    other = opened(model).ask(
        Prompt(session_id="s", prompt="Go", max_new_tokens=NEW_TOKENS, temperature=1.0, seed=8)
    )
    assert other["text"] != expected


def test_open_runs_the_model_before_the_first_prompt() -> None:
    """The system prompt and the images are in the cache when `open` is answered."""
    model = llava()
    harness = Harness(model)
    harness.media["p"] = noise(1)
    opened_answer = harness.ask(
        Open(session_id="s", images=(Image(url="p"),), system="Be brief."), creates_session=True
    )
    tokens = opened_answer["usage"]["prompt_tokens"]
    answer = harness.prompt("s", QUESTIONS[0], max_new_tokens=4)
    assert tokens > 16
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == tokens
