"""Sessions of a model whose layers attend to images beside the text, beside stock code on the whole transcript."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.showing import check, check_lost_turns, check_new_images, show
from tests.support.store_engines import FailingStore
from tests.support.tiny.beside import mllama
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import Model, accelerate
from ts_stateful.protocol.chat import Chat, Said
from ts_stateful.protocol.requests import Fork, Prompt, Rewind
from ts_stateful.protocol.response_format import Choice

WIDE, TALL, SMALL, OTHER = noise(1, 60, 18), noise(2, 15, 70), noise(3), noise(4, 40, 40)


@pytest.fixture(scope="module")
def model() -> Model:
    """The small model, for all tests."""
    return mllama()


def test_an_image_changes_the_reply(model: Model) -> None:
    """Or the tests below would show nothing; another picture is another reply."""
    replies = set()
    for session, pictures in (("none", []), ("wide", [WIDE]), ("tall", [TALL])):
        harness = Harness(model)
        harness.open(session, pictures)
        harness.prompt(session, "What color is it?", max_new_tokens=12)
        replies.add(tuple(harness.engine.table.get(session).state.log[-12:]))
    assert len(replies) == 3


def test_text_then_an_image_then_text_then_another(model: Model) -> None:
    """Stock code lets the first tokens attend to all images, so each new one changes all states."""
    check_new_images(model, WIDE, [TALL, SMALL])


def test_images_in_the_midst_of_texts(model: Model) -> None:
    """Apart, adjacent, and in a later message of the same chat."""
    harness = Harness(model)
    pictures = [WIDE, TALL, SMALL, OTHER]
    images = tuple(show(harness, picture) for picture in pictures)
    messages = (
        Said("user", ("Look at", None, "and at", None, None, "please.")),
        Said("assistant", ("Yes.",)),
        Said("user", ("And", None, "?")),
    )
    harness.open("s")
    asked = Chat(session_id="s", messages=messages, images=images, max_new_tokens=12)
    assert "error" not in harness.ask(asked)
    reference_reply(model, harness, "s", 12)
    check(model, harness, "s", pictures, "Go on.")


def test_sessions_with_other_images_and_without_share_steps(model: Model) -> None:
    """Also their prompts, in chunks; states without images are no part of those with them."""
    alone = {}
    opened = {"a": [WIDE], "b": [TALL, OTHER], "c": [], "d": [WIDE]}
    for name, pictures in opened.items():
        harness = Harness(model)
        harness.open(name, pictures)
        harness.prompt(name, "What color is it?", max_new_tokens=12)
        alone[name] = harness.engine.table.get(name).state.log
    harness = Harness(model)
    for name, pictures in opened.items():
        harness.open(name, pictures)
    for name in opened:
        harness.submit(Prompt(session_id=name, prompt="What color is it?", max_new_tokens=12))
    harness.run()
    assert {name: harness.engine.table.get(name).state.log for name in opened} == alone


def test_chats_at_once_share_states_beside_the_same_images(model: Model) -> None:
    """Also text before an image depends on it."""
    pictures, long = (
        (WIDE, TALL, WIDE, TALL),
        "Say in one word what color the shapes have that you see here. ",
    )

    def asked(harness: Harness, number: int) -> str:
        images = (show(harness, pictures[number]),)
        said = (Said("user", (long, None, f"Question {number}?")),)
        chat = Chat(session_id=f"s{number}", messages=said, images=images, max_new_tokens=12)
        return harness.submit(chat, creates_session=True)

    alone = []
    for number in range(4):
        harness = Harness(model)
        request = asked(harness, number)
        harness.run()
        alone.append(harness.last(request)["text"])
    harness = Harness(model)
    requests = [asked(harness, number) for number in range(4)]
    harness.run()
    answers = [harness.last(request) for request in requests]
    assert [answer["text"] for answer in answers] == alone
    details = [answer["usage"]["prompt_tokens_details"] for answer in answers]
    assert [each["cached_tokens"] > 16 for each in details] == [False, False, True, True]


def test_forks_and_rewinds_to_where_there_were_other_images(model: Model) -> None:
    """The states after more images are not reused, though the ids are the same."""
    harness = Harness(model)
    harness.open("s", [WIDE])
    check(model, harness, "s", [WIDE])
    check(model, harness, "s", [WIDE], "And this?", [TALL])
    fork = Fork(session_id="s", new_session_id="f", at_turn=1)
    assert "error" not in harness.ask(fork, creates_session=True)
    check(model, harness, "f", [WIDE], "Sure?")
    harness.ask(Rewind(session_id="s", to_turn=1))
    check(model, harness, "s", [WIDE], "And now?")
    check(model, harness, "s", [WIDE], "And here?", [SMALL])


def test_a_turn_with_an_image_that_is_cancelled_or_rolled_back(model: Model) -> None:
    """What it computed is as if it had not been, or stays part of the transcript."""
    check_lost_turns(model, WIDE, OTHER, TALL)


def test_a_session_goes_on_in_another_engine(model: Model) -> None:
    """Its images are read from the store; the vision tower does not run. States of the text are never there."""
    store = FailingStore()
    first, second = (
        Harness(model, {"handler": {"store": {"kvSpill": True}}}, store=store) for _ in range(2)
    )
    assert first.kind.persistence.offload is None
    first.open("s", [WIDE])
    check(model, first, "s", [WIDE])
    check(model, first, "s", [WIDE], "And this?", [TALL])
    assert model.encoder is not None
    before = model.encoder.num_encoded
    check(model, second, "s", [WIDE, TALL], "And then?")
    assert model.encoder.num_encoded == before


def test_a_shared_system_prompt_with_texts_alone(model: Model) -> None:
    """The template has none beside images; states of a text-only session do not serve one with an image."""
    harness = Harness(model)
    system = "You are a helpful assistant who answers all questions in short and clear sentences."
    for session in ("a", "b"):
        harness.open(session, system=system)
        check(model, harness, session, [])
    reused = harness.prompt("b", "Sure?", max_new_tokens=4)["usage"]["prompt_tokens_details"]
    assert reused["cached_tokens"] > 0
    document = harness.prompt("a", "And this?", images=(show(harness, WIDE),))
    assert document["error"]["code"] == "invalid_request"


def test_a_reply_beside_an_image_has_a_form(model: Model) -> None:
    """The token of an image, which has no logit, is no obstacle."""
    harness = Harness(model)
    harness.open("s", [WIDE])
    form = Choice(options=("red", "blue"))
    document = harness.prompt("s", "What color is it?", response_format=form, max_new_tokens=8)
    assert document["text"] in form.options


def test_its_attention_kernels_are_used() -> None:
    """In the layers that have states of the text."""
    fast = mllama()
    accelerate(fast, HandlerConfig(model=""))
    assert fast.forward.flat
    assert fast.forward.for_kernels
    harness = Harness(fast)
    harness.open("s", [WIDE, TALL])
    check(fast, harness, "s", [WIDE, TALL])
    check(fast, harness, "s", [WIDE, TALL], "And now?")


def test_a_penalty_of_repetition_beside_an_image(model: Model) -> None:
    """The token of an image has no logit, and is not penalized in another session's place."""
    asked = {"repetition_penalty": 1.5, "max_new_tokens": 8}
    logs = []
    for others in ((), ("t",)):
        harness = Harness(model)
        for session in ("s", *others):
            harness.open(session, [WIDE])
        for session in ("s", *others):
            harness.submit(Prompt(session_id=session, prompt="What is it?", **asked))  # type: ignore[arg-type]
        harness.run()
        logs.append(harness.engine.table.get("s").state.log)
    assert logs[0] == logs[1]
