"""Sessions of a model whose prompts look ahead as a whole, beside stock code on the whole transcript."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from msgspec import structs
from torch import Tensor

from tests.support.harness import Harness, reference_reply, stock_reply
from tests.support.memory_store import MemoryStore
from tests.support.pictures import Picture, noise
from tests.support.showing import (
    NEW_TOKENS,
    check,
    check_lost_turns,
    check_new_images,
    log_of,
    show,
)
from tests.support.tiny.prefix import paligemma, paligemma2
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import Model, accelerate, build_model
from ts_stateful.protocol.chat import Chat, RawPrompt, Said
from ts_stateful.protocol.requests import Fork, Image, Info, Prompt, Rewind

SQUARE, WIDE, TALL = noise(1), noise(2, 80, 30), noise(3, 20, 50)


@pytest.fixture(scope="module", params=[paligemma, paligemma2], ids=lambda make: make.__name__)
def model(request: pytest.FixtureRequest) -> Model:
    """Both generations, the second with windows that are shorter than a prompt."""
    made: Model = request.param()
    return made


def num_encoded(model: Model) -> int:
    assert model.encoder is not None
    return model.encoder.num_encoded


def processed(model: Model, text: str, pictures: Sequence[Picture]) -> list[int]:
    """Return what the stock processor makes of a text."""
    made = model.text._owner(text=[text], images=[list(pictures)], return_tensors="pt")
    ids: list[int] = made["input_ids"][0].tolist()
    return ids


def stock_next(model: Model, embedded: Tensor, types: Tensor) -> int:
    """Return the token that a stock pass over embeddings chooses."""
    config = model.network.config.get_text_config(decoder=True)
    ours, config._attn_implementation = config._attn_implementation, model.forward.stock_attention
    try:
        with torch.inference_mode():
            output = model.network(inputs_embeds=embedded, token_type_ids=types, use_cache=False)
    finally:
        config._attn_implementation = ours
    return int(output.logits[0, -1].argmax())


def test_an_image_changes_the_reply(model: Model) -> None:
    """Or the tests below would show nothing."""
    replies = set()
    for pictures in ((), (SQUARE,), (WIDE,)):
        harness = Harness(model)
        harness.open("s", pictures)
        replies.add(tuple(check(model, harness, "s", pictures)))
    assert len(replies) == 3


def test_a_prompt_is_what_the_processor_writes(model: Model) -> None:
    """BOS after the last image, a line for each message, and a line feed before the reply, whose ids stay as they are."""
    harness = Harness(model)
    harness.open("s", [SQUARE, WIDE])
    reply = check(model, harness, "s", [SQUARE, WIDE], "Which one\n\nis blue?\n")
    first = processed(model, "<image><image>Which one\n\nis blue?\n", [SQUARE, WIDE])
    assert log_of(harness, "s") == [*first, *reply]
    again = check(model, harness, "s", [SQUARE, WIDE], "Sure?")
    line = model.tokenizer("\nSure?\n").input_ids
    assert log_of(harness, "s") == [*first, *reply, *line, *again]


def test_text_then_an_image_then_text_then_others(model: Model) -> None:
    """A new image moves BOS, so the transcript is written again."""
    harness = check_new_images(model, WIDE, [TALL, SQUARE])
    ids = log_of(harness, "s")
    assert ids.count(model.tokenizer.bos_token_id) == 1
    (token,) = model.media_tokens
    assert ids.index(model.tokenizer.bos_token_id) > max(
        at for at, each in enumerate(ids) if each == token
    )


def test_images_in_the_midst_of_texts(model: Model) -> None:
    """Apart, adjacent, and in a later message of the same chat."""
    harness = Harness(model)
    pictures = [SQUARE, WIDE, TALL]
    images = tuple(show(harness, picture) for picture in pictures)
    messages = (
        Said("user", ("Look at", None, "and at", None, "please.")),
        Said("assistant", ("Yes.",)),
        Said("user", ("And", None, "?")),
    )
    harness.open("s")
    asked = Chat(session_id="s", messages=messages, images=images, max_new_tokens=NEW_TOKENS)
    usage = harness.ask(asked)["usage"]
    text = "Look at<image>and at<image>please.\nYes.\nAnd<image>?"
    assert log_of(harness, "s")[: usage["prompt_tokens"]] == processed(model, text, pictures)
    reference_reply(model, harness, "s", NEW_TOKENS)
    check(model, harness, "s", pictures, "Go on.")


def test_open_encodes_images_and_a_turn_keeps_no_states(model: Model) -> None:
    """The first prompt runs no tower; what a turn has computed serves no other one, and is no loss."""
    harness = Harness(model)
    before = num_encoded(model)
    answer = harness.open("s", [SQUARE, WIDE])
    assert num_encoded(model) == before + 2
    assert answer["usage"]["prompt_tokens"] == 2 * 16 + 1
    for question in ("What color is it?", "Sure?"):
        answer = harness.prompt("s", question, max_new_tokens=4)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer["timing"]["restored_from"] is None
        assert harness.engine.table.get("s").state.device_bytes == 0
        assert harness.engine.table.get("s").state.image_bytes > 0
    assert harness.ask(Info(session_id="s"))["turns"] == 2
    assert num_encoded(model) == before + 2


def test_another_question_about_the_same_image(model: Model) -> None:
    """After a rewind to the opening a question is the first one again, and the image is not encoded again."""
    harness = Harness(model)
    harness.open("s", [SQUARE])
    before = num_encoded(model)
    for question in ("What color is it?", "answer en how many shapes are there?"):
        check(model, harness, "s", [SQUARE], question)
        prompt = log_of(harness, "s")[
            : harness.engine.table.get("s").state.turns[0].usage.prompt_tokens
        ]
        assert prompt == processed(model, f"<image>{question}", [SQUARE])
        harness.ask(Rewind(session_id="s", to_turn=0))
    assert num_encoded(model) == before


def test_sessions_share_steps(model: Model) -> None:
    """With one image, several and none, prompts whole beside replies of others: each is what it would be alone."""
    opened = {"a": [SQUARE], "b": [WIDE, TALL], "c": [], "d": [SQUARE]}
    alone = {}
    for name, pictures in opened.items():
        harness = Harness(model)
        harness.open(name, pictures)
        harness.prompt(name, f"I am {name}.", max_new_tokens=NEW_TOKENS)
        alone[name] = log_of(harness, name)
    harness = Harness(model)
    for name, pictures in opened.items():
        harness.open(name, pictures)
    for name in opened:
        harness.submit(Prompt(session_id=name, prompt=f"I am {name}.", max_new_tokens=NEW_TOKENS))
        harness.steps(2)
    harness.run()
    assert {name: log_of(harness, name) for name in opened} == alone


def test_forks_of_an_idle_session_and_of_a_turn_in_progress(model: Model) -> None:
    """They take over texts and images, and no states: those of the running prompt have seen its image."""
    harness = Harness(model)
    harness.open("s")
    check(model, harness, "s", [])
    images = (show(harness, WIDE),)
    harness.submit(Prompt(session_id="s", prompt="And this?", images=images, max_new_tokens=40))
    harness.steps(6)
    for fork in ("f", "g"):
        asked = Fork(session_id="s", new_session_id=fork, at_turn=1)
        assert "error" not in harness.ask(asked, creates_session=True)
        assert harness.engine.table.get(fork).state.device_bytes == 0
    harness.media = {}
    check(model, harness, "f", [], "Sure?")
    check(model, harness, "g", [], "And here?", [TALL])
    check(model, harness, "s", [WIDE], "Go on.")
    harness.ask(Rewind(session_id="s", to_turn=1))
    check(model, harness, "s", [], "And now?")


def test_a_turn_that_is_cancelled_or_rolled_back(model: Model) -> None:
    """What was generated stays part of the transcript, or is as if it had not been."""
    check_lost_turns(model, SQUARE, WIDE, TALL)


def test_a_session_goes_on_in_another_engine(model: Model) -> None:
    """In the midst of a reply: its tokens follow a prompt that is computed again as a whole. No states are in the store."""
    store = MemoryStore()
    config = {"handler": {"store": {"kvSpill": True}, "deviceCacheBytes": 200_000}}
    first = Harness(model, config, store=store)
    first.open("s", [SQUARE])
    check(model, first, "s", [SQUARE])
    command = Prompt(session_id="s", prompt="And?", max_new_tokens=NEW_TOKENS, stream=True)
    request = first.submit(command)
    first.steps(8)
    ids = [token for event in first.events[request] for token in event.token_ids]
    assert 2 < len(ids) < NEW_TOKENS
    before = num_encoded(model)
    second = Harness(model, config, store=store, first_id=100)
    second.media = first.media
    again = second.submit(structs.replace(command), is_retry=True, replay=tuple(ids))
    second.run()
    assert "error" not in second.last(again)
    reference_reply(model, second, "s", NEW_TOKENS)
    assert num_encoded(model) == before
    assert not list(store.list("kv"))


def test_several_replies_to_one_prompt(model: Model) -> None:
    """Each computes the prompt, and is what it would be alone."""

    def ask(name: str, seed: int) -> Chat:
        return Chat(
            session_id=name,
            messages=(Said("user", (None, "Tell me a story.")),),
            images=(Image(url="picture"),),
            max_new_tokens=NEW_TOKENS,
            temperature=1.0,
            seed=seed,
        )

    def harness_with_picture() -> Harness:
        harness = Harness(model)
        harness.media["picture"] = SQUARE
        return harness

    alone = [
        harness_with_picture().ask(ask("a", seed), creates_session=True, ephemeral=True)["text"]
        for seed in (5, 6)
    ]
    assert alone[0] != alone[1]
    harness = harness_with_picture()
    for at in range(2):
        request, command = f"r.{at}", ask(f"s{at}", 5 + at)
        harness.submit(command, request, creates_session=True, ephemeral=True)
    harness.run()
    assert [harness.last(f"r.{at}")["text"] for at in range(2)] == alone


def test_a_generated_image_token_does_not_cut_the_next_prompt(model: Model) -> None:
    """Stock code would take it for an image, so it is compared with the embeddings of both."""
    harness = Harness(model)
    harness.open("s", [SQUARE])
    (token,) = model.media_tokens
    harness.prompt("s", "What color is it?", logit_bias={token: 100.0}, max_new_tokens=1)
    assert log_of(harness, "s")[-1] == token
    count = harness.prompt("s", "Sure?", max_new_tokens=4)["usage"]["prompt_tokens"]
    prompt, reply = log_of(harness, "s")[:count], log_of(harness, "s")[count:]
    (image,) = harness.engine.table.get("s").state.images
    embed = model.network.get_input_embeddings()
    embedded = embed(torch.tensor([prompt]))
    assert image.features is not None
    embedded[0, :16] = image.features[0]
    for expected in reply:
        types = torch.tensor([[0] * count + [1] * (embedded.shape[1] - count)])
        assert stock_next(model, embedded, types) == expected
        embedded = torch.cat([embedded, embed(torch.tensor([[expected]]))], dim=1)


def test_places_in_an_image_are_words_and_control_tokens_are_not(model: Model) -> None:
    """As for the stock processor; also in a reply that is written again, after another image."""
    harness = Harness(model)
    harness.open("s", [SQUARE])
    question = "caption en <loc0012><loc0700><seg004> of it"
    check(model, harness, "s", [SQUARE], question)
    place = model.tokenizer.convert_tokens_to_ids("<loc0700>")
    assert log_of(harness, "s").count(place) >= 1
    first = processed(model, f"<image>{question}", [SQUARE])
    assert log_of(harness, "s")[: len(first)] == first
    harness.open("t", [SQUARE])
    harness.prompt("t", "Is <image> or <bos> a word?", max_new_tokens=1)
    assert log_of(harness, "t").count(model.tokenizer.bos_token_id) == 1
    assert [id for id in log_of(harness, "t") if id in model.media_tokens] == [
        *model.media_tokens
    ] * 16


def test_a_text_without_a_form(model: Model) -> None:
    """It is read as it is, and looks ahead as stock code lets a text do."""
    harness = Harness(model)
    asked = RawPrompt(session_id="s", prompt="The quick brown", max_new_tokens=NEW_TOKENS)
    answer = harness.ask(asked, creates_session=True)
    assert "error" not in answer, answer
    ids = model.tokenizer("The quick brown").input_ids
    reply = stock_reply(model, ids, NEW_TOKENS)
    assert log_of(harness, "s")[len(ids) :] == [id for id in reply if id not in model.eos_ids]


def test_its_kernels_are_used(model: Model) -> None:
    """Also the call for all layers of few tokens, which does not look ahead, and so computes no prompt."""
    fast = paligemma() if model.forward.windows == [None, None] else paligemma2()
    accelerate(fast, HandlerConfig(model=""))
    assert fast.forward.flat
    assert fast.forward.for_kernels
    harness = Harness(fast)
    harness.open("s", [SQUARE])
    harness.open("t")
    for question in ("What color is it?", "And now?"):
        check(fast, harness, "s", [SQUARE], question)
        harness.media = {}
        check(fast, harness, "t", [], question)


def test_a_pass_for_each_session(model: Model) -> None:
    """Where stock code makes the masks, it gets the prompt's tokens as such."""
    alone = paligemma() if model.forward.windows == [None, None] else paligemma2()
    alone.forward.flat = False
    config = alone.network.config.get_text_config(decoder=True)
    config._attn_implementation = alone.forward.stock_attention
    harness = Harness(alone)
    harness.open("s", [SQUARE])
    harness.open("t")
    check(alone, harness, "s", [SQUARE])
    check(alone, harness, "s", [SQUARE], "And now?", [TALL])
    harness.media = {}
    check(alone, harness, "t", [])


def test_its_text_alone(model: Model) -> None:
    """Without its processor it is a text model, whose prompts look ahead."""
    config = model.network.config.get_text_config(decoder=True)
    config._attn_implementation = model.forward.stock_attention
    text = build_model("text", model.network, model.tokenizer)
    harness = Harness(text)
    harness.open("s")
    check(text, harness, "s", [])
    check(text, harness, "s", [], "And now?")
