"""Conversations that clients keep themselves: what the session has is kept, and a reply is that of the whole conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.chats import NEW_TOKENS, Chats, Told, cached, chat
from tests.support.harness import Harness
from tests.support.tiny import REWRITING, llama, llava, qwen2_vl
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Chat, Said
from ts_stateful.protocol.requests import Fork, Image, Rewind

MAKERS: dict[str, Callable[[], Model]] = {
    "llama": llama,
    "rewriting": lambda: llama(REWRITING),
    "llava": llava,
    "qwen2_vl": qwen2_vl,
}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def model(request: pytest.FixtureRequest) -> Model:
    """Templates that append and one that rewrites; models that see and those that do not."""
    return MAKERS[request.param]()


def test_the_same_history_is_not_computed_again(model: Model) -> None:
    """Turn after turn, the client sends everything and only what is new is prefilled."""
    chats = Chats(model)
    told: list[Told] = [("system", "Be brief."), ("user", "What color is it?")]
    if model.encoder is not None:
        told[1] = ("user", ["@1", "What color is it?"])
    fields: dict[str, Any] = {"creates_session": True}
    for number, question in enumerate(("And the square?", "Tell me more.", "Why?"), start=1):
        answer = chats.say(*told, **fields)
        assert answer["turn"] == number
        if number > 1:
            assert cached(answer) > 0
        told += [("assistant", answer["text"]), ("user", question)]
        fields = {}
    assert len(chats.session().state.turns) == 3


def test_all_but_the_new_message_is_reused_where_the_template_only_appends() -> None:
    """Generated tokens included."""
    chats = Chats(llama())
    first = chats.say(("user", "What color is it?"), creates_session=True)
    held = len(chats.session().state.log)
    again = chats.say(("user", "What color is it?"), ("assistant", first["text"]), ("user", "Why?"))
    assert cached(again) >= held - 1


def test_a_diverging_history_goes_back_to_the_last_common_turn(model: Model) -> None:
    """What the client has edited or regenerated counts, and what came before is kept."""
    chats = Chats(model)
    one = ("user", "What color is it?")
    first = chats.say(one, creates_session=True)
    chats.say(one, ("assistant", first["text"]), ("user", "And the square?"))
    held = len(chats.session().state.turns[0].delta.ids)
    edited = chats.say(one, ("assistant", first["text"]), ("user", "And the circle?"))
    assert edited["turn"] == 2
    assert cached(edited) >= held - 1
    regenerated = chats.say(one)
    assert (regenerated["turn"], regenerated["text"]) == (1, first["text"])
    assert len(chats.session().state.turns) == 1


def test_a_history_that_the_session_never_had_is_taken_as_it_is_told(model: Model) -> None:
    """Replies of another model, several messages at once; the next turn finds them computed."""
    chats = Chats(model)
    told: list[Told] = [
        ("system", "Be brief."),
        ("user", "What color is it?"),
        ("assistant", "It is red, I said elsewhere."),
        ("user", "And the square?"),
    ]
    answer = chats.say(*told, creates_session=True)
    assert answer["turn"] == 1
    more = chats.say(*told, ("assistant", answer["text"]), ("user", "Why?"))
    assert more["turn"] == 2
    assert cached(more) > 0
    other = chats.say(*told[:2], ("assistant", "Blue."), ("user", "And the square?"))
    assert other["turn"] == 1


def test_another_system_prompt_begins_anew(model: Model) -> None:
    """Also where the session was opened with one."""
    chats = Chats(model)
    chats.harness.open("s", system="Be brief.")
    first = chats.say(("system", "Be brief."), ("user", "Why?"))
    assert first["turn"] == 1
    assert chats.session().state.opening.messages
    other = chats.say(("system", "Be long."), ("user", "Why?"))
    assert other["turn"] == 1
    assert not chats.session().state.opening.messages
    more = chats.say(
        ("system", "Be long."), ("user", "Why?"), ("assistant", other["text"]), ("user", "So?")
    )
    assert (more["turn"], cached(more) > 0) == (2, True)


def test_what_the_session_was_opened_with_need_not_be_told() -> None:
    """A system prompt and images are said once, on the server; who tells them again means the same."""
    chats = Chats(llava())
    picture = chats.pictures["@1"]
    chats.harness.open("s", [picture], system="Be brief.")
    answer = chats.harness.ask(chat("s", ("user", ("What is it?",))))
    told: list[Told] = [("system", "Be brief."), ("user", ["@1", "What is it?"])]
    chats.check([("system", ["Be brief."]), ("user", ["@1", "What is it?"])])
    again = chats.say(*told, ("assistant", answer["text"]), ("user", "Why?"))
    assert again["turn"] == 2
    untold = chats.harness.ask(
        chat("s", ("user", ("What is it?",)), ("assistant", (answer["text"],)), ("user", ("Why?",)))
    )
    assert (untold["turn"], untold["text"]) == (2, again["text"])
    assert len(chats.session().state.images) == 1


def test_images_stand_where_they_are_told_and_are_known_by_their_pixels() -> None:
    """Before, between and behind texts; another picture is another history."""
    model = llava()
    chats = Chats(model)
    assert model.encoder is not None
    told: Told = ("user", ["Look:", "@1", "and", "@2", "compare."])
    first = chats.say(told, creates_session=True)
    encoded = model.encoder.num_encoded
    more = chats.say(told, ("assistant", first["text"]), ("user", ["And", "@3"]))
    assert (more["turn"], model.encoder.num_encoded) == (2, encoded + 1)
    swapped = chats.say(("user", ["Look:", "@2", "and", "@1", "compare."]))
    assert swapped["turn"] == 1
    assert cached(swapped) < len(model.tokenizer("Look:").input_ids) + 16  # up to the first image
    assert [image.key for image in chats.session().state.images] == [
        model.encoder.key(chats.pictures[name]) for name in ("@2", "@1")
    ]


def test_an_image_that_the_session_shows_is_not_fetched_again() -> None:
    """Its URL means the same picture, though the server behind it may be gone; as long as the session shows it."""
    chats = Chats(llava())
    told: Told = ("user", ["@1", "What?"])
    first = chats.say(told, creates_session=True)
    del chats.harness.media["@1"]
    more: list[Told] = [told, ("assistant", first["text"]), ("user", ["And", "@2"])]
    second = chats.say(*more)
    assert second["turn"] == 2
    del chats.harness.media["@2"]
    assert chats.say(*more[:2], ("user", "Another question."))["turn"] == 2
    assert list(chats.session().state.by_url) == ["@1"]


def test_prompts_and_conversations_may_take_turns(model: Model) -> None:
    """They are turns of the same session, and `rewind` works on both."""
    chats = Chats(model)
    chats.harness.open("s")
    first = chats.harness.prompt("s", "What color is it?", max_new_tokens=NEW_TOKENS)
    second = chats.say(
        ("user", "What color is it?"), ("assistant", first["text"]), ("user", "Why?")
    )
    assert second["turn"] == 2
    assert chats.harness.prompt("s", "So?", max_new_tokens=NEW_TOKENS)["turn"] == 3
    chats.harness.ask(Rewind(session_id="s", to_turn=1))
    again = chats.say(("user", "What color is it?"), ("assistant", first["text"]), ("user", "Why?"))
    assert (again["turn"], again["text"]) == (2, second["text"])


def test_a_conversation_that_fails_leaves_the_session_where_it_was(model: Model) -> None:
    """Although it had left the session's history long before."""
    chats = Chats(model)
    first = chats.say(("user", "What color is it?"), creates_session=True)
    before = list(chats.session().state.log)
    request = chats.harness.submit(
        Chat(
            session_id="s",
            max_new_tokens=200,
            ignore_eos=True,
            messages=(Said("user", ("Something else.",)),),
        )
    )
    chats.harness.steps(4)
    chats.harness.engine.drop(request)
    chats.harness.clock.now += 20
    chats.harness.engine.tick()
    chats.harness.run()
    assert chats.session().state.log == before
    more = chats.say(("user", "What color is it?"), ("assistant", first["text"]), ("user", "Why?"))
    assert more["turn"] == 2


def test_kv_states_may_be_gone(model: Model) -> None:
    """They are computed again, also for a conversation that leaves the history."""
    chats = Chats(model)
    first = chats.say(("user", "What color is it?"), creates_session=True)
    chats.say(("user", "What color is it?"), ("assistant", first["text"]), ("user", "Why?"))
    chats.harness.engine.table.evict_idle()
    again = chats.say(("user", "What color is it?"), ("assistant", first["text"]), ("user", "So?"))
    assert (again["turn"], cached(again)) == (2, 0)


def test_what_is_the_same_of_a_turn_that_is_left_is_not_computed_again() -> None:
    """A client that trims replies, say, tells every one of them otherwise than it was."""
    chats = Chats(llava())
    told: list[Told] = [("user", ["@1", "What color is it?"])]
    before = 0
    for number, question in enumerate(("And the square?", "Tell me more.", "Why?")):
        answer = chats.say(*told, creates_session=number == 0)
        assert cached(answer) >= before
        before = answer["usage"]["prompt_tokens"] - 4
        told += [("assistant", f"It is {number}."), ("user", question)]
    assert len(chats.session().state.turns) == 1


def test_a_fork_takes_nothing_of_a_conversation_that_is_elsewhere() -> None:
    """While one that has left the history runs, its KV states are not those of the history."""
    chats = Chats(llava())
    first = chats.say(("user", ["@1", "What?"]), creates_session=True)
    other = Chat(
        session_id="s",
        max_new_tokens=50,
        ignore_eos=True,
        images=(Image(url="@2"),),
        messages=(Said("user", (None, "What?")),),
    )
    chats.harness.submit(other)
    chats.harness.steps(6)
    fork(chats.harness)
    chats.harness.run()
    told: list[Told] = [("user", ["@1", "What?"]), ("assistant", first["text"]), ("user", "Why?")]
    assert chats.say(*told, session="f")["turn"] == 2


def fork(harness: Harness) -> None:
    assert "error" not in harness.ask(
        Fork(session_id="s", new_session_id="f"), creates_session=True
    )


def test_control_tokens_in_what_is_told_are_text() -> None:
    """Whoever is said to have said them."""
    chats = Chats(llama())
    eos = chats.model.tokenizer.eos_token
    answer = chats.say(
        ("user", f"a{eos}"), ("assistant", f"{eos}b"), ("user", "Why?"), creates_session=True
    )
    assert answer["turn"] == 1
