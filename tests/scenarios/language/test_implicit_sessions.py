"""Conversations without a session header: what an earlier request has computed is not computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.chats import Chats, Told, cached
from tests.support.harness import stock_reply
from tests.support.tiny import REWRITING, llama, llava, qwen2_vl
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.network.load import Model
from ts_stateful.language.runner import Runner
from ts_stateful.protocol.chat import RawPrompt
from ts_stateful.protocol.errors import OutOfMemory
from ts_stateful.protocol.tenants import internal_id

MAKERS: dict[str, Callable[[], Model]] = {
    "llama": llama,
    "rewriting": lambda: llama(REWRITING),
    "llava": llava,
    "qwen2_vl": qwen2_vl,
}
COLOR = ("user", "What color is it?")
SQUARE = ("user", "And the square?")


@pytest.fixture(scope="module", params=sorted(MAKERS))
def model(request: pytest.FixtureRequest) -> Model:
    """Templates that append and one that rewrites; models that see and those that do not."""
    return MAKERS[request.param]()


def reply(answer: dict[str, Any]) -> Told:
    return ("assistant", answer["text"])


def stats(chats: Chats) -> Any:
    return chats.harness.engine.stats()


def held(chats: Chats) -> int:
    """The number of sessions that wait for their next request; none of them is open to a client."""
    assert len(chats.harness.engine.table) == 0
    return int(stats(chats).implicit_sessions)


def test_a_longer_list_of_messages_computes_only_what_is_new(model: Model) -> None:
    """With an image in each message. A session with a header does not compute less."""
    chats, explicit = Chats(model), Chats(model)
    told: list[Told] = [("system", "Be brief.")]
    for number in (1, 2, 3):
        shown = [f"@{number}"] if model.encoder is not None else []
        told.append(("user", [*shown, f"What is in number {number}?"]))
        answer = chats.say_alone(*told)
        assert held(chats) == 1
        with_header = explicit.say(*told, checked=False, creates_session=number == 1)
        assert answer["text"] == with_header["text"]
        assert cached(answer) == cached(with_header)
        assert (cached(answer) > 0) is (number > 1)
        told.append(reply(answer))
    assert stats(chats).implicit_continued == 2


def test_all_but_the_new_message_is_cached() -> None:
    """Generated ids included."""
    chats = Chats(llama())
    first = chats.say_alone(COLOR)
    log = len(chats.session("alone-1").state.log)
    assert cached(chats.say_alone(COLOR, reply(first), SQUARE)) >= log - 1


def test_another_conversation_is_not_disturbed(model: Model) -> None:
    """A title for it, one with the same beginning, and one with other images."""
    chats = Chats(model)
    pictures = ["@1"] if model.encoder is not None else []
    one: Told = ("user", [*pictures, "What color is it?"])
    first = chats.say_alone(one)
    chats.say_alone(("user", f"Write a title for: What color is it? {first['text']}"))
    chats.say_alone(one, ("assistant", "I cannot tell."), SQUARE)
    assert held(chats) == 3
    before = stats(chats).implicit_continued
    assert before == 0
    chats.say_alone(one, reply(first), SQUARE)
    assert stats(chats).implicit_continued == before + 1
    if model.encoder is not None:
        chats.say_alone(("user", ["@2", "What color is it?"]), reply(first), SQUARE)
        assert stats(chats).implicit_continued == before + 1


def test_a_reply_that_is_asked_for_again_leaves_the_turns_before_it(model: Model) -> None:
    """The session goes back in place."""
    chats = Chats(model)
    first = chats.say_alone(COLOR)
    second = chats.say_alone(COLOR, reply(first), SQUARE)
    again = chats.say_alone(COLOR, reply(first), SQUARE)
    assert again["text"] == second["text"]
    assert cached(again) > 0
    assert held(chats) == 1


def test_an_early_change_copies_what_is_common(model: Model) -> None:
    """The longer conversation stays, and can be continued too."""
    chats = Chats(model)
    first = chats.say_alone(COLOR)
    second = chats.say_alone(COLOR, reply(first), SQUARE)
    third = chats.say_alone(COLOR, reply(first), SQUARE, reply(second), ("user", "Why?"))
    branched = chats.say_alone(COLOR, reply(first), ("user", "And the circle?"))
    assert cached(branched) > 0
    assert held(chats) == 2
    told = (COLOR, reply(first), SQUARE, reply(second), ("user", "Why?"), reply(third))
    assert cached(chats.say_alone(*told, COLOR)) > cached(third)
    assert held(chats) == 2


def test_two_requests_at_once_share_what_they_have_in_common(model: Model) -> None:
    """The first continues the session, the second copies from it."""
    chats = Chats(model)
    first = chats.say_alone(COLOR)
    harness = chats.harness
    lone: dict[str, Any] = {"creates_session": True, "ephemeral": True}
    one = harness.submit(chats.chat(COLOR, reply(first), SQUARE, session="one"), **lone)
    harness.steps(2)
    other: Told = ("user", "And the circle?")
    two = harness.submit(chats.chat(COLOR, reply(first), other, session="two"), **lone)
    harness.run()
    assert min(cached(harness.last(one)), cached(harness.last(two))) > 0
    chats.check((COLOR, reply(first), SQUARE), "one")
    chats.check((COLOR, reply(first), other), "two")
    assert held(chats) == 2


def test_a_failure_leaves_the_conversation_as_it_was() -> None:
    """A message that does not fit, and a client that goes away."""
    chats = Chats(llama())
    first = chats.say_alone(COLOR)
    long = chats.say_alone(COLOR, reply(first), ("user", "why " * 500), checked=False)
    assert long["error"]["code"] == "context_too_long"
    assert held(chats) == 1
    lone: dict[str, Any] = {"creates_session": True, "ephemeral": True}
    gone = chats.harness.submit(chats.chat(COLOR, reply(first), SQUARE, session="x"), **lone)
    chats.harness.steps(1)
    chats.harness.engine.drop(gone)
    chats.harness.engine.tick()
    assert held(chats) == 1
    assert cached(chats.say_alone(COLOR, reply(first), SQUARE)) > 0


def test_a_reply_that_its_reader_stops_leaves_what_was_computed() -> None:
    """Also of a first prompt: programs send the part of the reply that they have, or ask again."""
    chats, seen = (
        Chats(llama()),
        ("user", "How many shapes are there, and which of them is yellow?"),
    )
    lone: dict[str, Any] = {"creates_session": True, "ephemeral": True}
    stopped = chats.harness.submit(chats.chat(seen, session="x"), **lone)
    chats.harness.steps(4)
    chats.harness.engine.drop(stopped)
    chats.harness.engine.tick()
    assert held(chats) == 1
    asked = chats.say_alone(seen, ("assistant", "There"), SQUARE)
    again = chats.say_alone(seen)
    length = again["usage"]["prompt_tokens"]
    assert cached(asked) >= length
    assert cached(again) == length - 1


def test_it_waits_for_some_minutes() -> None:
    """Without a request it is dropped; with one the time begins again."""
    chats = Chats(llama(), config={"handler": {"implicitSessions": {"idleSec": 100}}})
    first = chats.say_alone(COLOR)
    chats.harness.clock.sleep(90)
    second = chats.say_alone(COLOR, reply(first), SQUARE)
    chats.harness.clock.sleep(90)
    chats.harness.engine.tick()
    assert held(chats) == 1
    chats.harness.clock.sleep(10)
    chats.harness.engine.tick()
    assert held(chats) == 0
    told = (COLOR, reply(first), SQUARE, reply(second), COLOR)
    assert cached(chats.say_alone(*told)) == 0


def test_the_bytes_of_all_are_bounded() -> None:
    """The one that waits longest leaves first."""
    chats = Chats(llama())
    chats.say_alone(COLOR)
    size = stats(chats).implicit_bytes
    assert size > 0
    chats = Chats(llama(), config={"handler": {"implicitSessions": {"maxBytes": int(2.5 * size)}}})
    answers = [chats.say_alone(("user", f"What color is {number}?")) for number in range(4)]
    assert held(chats) == 2
    assert stats(chats).implicit_bytes <= 2.5 * size
    last = chats.say_alone(("user", "What color is 3?"), reply(answers[3]), SQUARE)
    assert cached(last) > 0
    lost = chats.say_alone(("user", "What color is 0?"), reply(answers[0]), SQUARE)
    assert cached(lost) == 0


def test_an_explicit_session_never_makes_room_for_one() -> None:
    """It stays on the device, and those without a header leave."""
    model = llama()
    room = 80 * model.new_kv().token_bytes
    config = {"handler": {"deviceCacheBytes": room, "implicitSessions": {"maxBytes": room}}}
    chats = Chats(model, config=config)
    chats.say(COLOR, creates_session=True)
    used = chats.session().state.device_bytes
    for number in range(6):
        chats.say_alone(("user", f"What color is {number}?"))
        assert chats.session().state.device_bytes == used
    assert 0 < stats(chats).implicit_sessions < 6
    assert stats(chats).evictions == 0


@pytest.mark.parametrize(
    "handler", [{"implicitSessions": {"idleSec": 0}}, {"statefulSessions": False}]
)
def test_it_can_be_turned_off(handler: dict[str, Any]) -> None:
    """Then nothing that was said stays."""
    chats = Chats(llama(), config={"handler": handler})
    first = chats.say_alone(COLOR, checked=False)
    assert held(chats) == 0
    assert cached(chats.say_alone(COLOR, reply(first), SQUARE, checked=False)) == 0


def test_another_principal_finds_nothing() -> None:
    """It could learn what was said from the tokens that are cached."""
    chats = Chats(llama(), config={"handler": {"auth": {"mode": "header", "header": "x-user"}}})
    lone: dict[str, Any] = {"creates_session": True, "ephemeral": True}
    first = chats.say(COLOR, session=internal_id("alice", "1"), **lone)
    told = (COLOR, reply(first), SQUARE)
    assert cached(chats.say(*told, session=internal_id("bob", "2"), **lone)) == 0
    assert cached(chats.say(*told, session=internal_id("alice", "3"), **lone)) > 0


class Texts:
    """Requests for the continuation of texts without messages, compared with stock `generate`."""

    def __init__(self, model: Model, room: int | None = None) -> None:
        """The device has room for so many tokens, and one implicit session may take them all."""
        num_bytes = room and room * model.new_kv().token_bytes
        limits = {"deviceCacheBytes": num_bytes, "implicitSessions": {"maxBytes": num_bytes}}
        self.chats = Chats(model, config={"handler": limits} if room else None)
        self.model, self.number = model, 0

    def say(self, text: str, max_new_tokens: int = 6) -> dict[str, Any]:
        self.number += 1
        raw = RawPrompt(
            session_id=f"text-{self.number}",
            prompt=text,
            max_new_tokens=max_new_tokens,
            ignore_eos=True,
        )
        answer = self.chats.harness.ask(raw, creates_session=True, ephemeral=True)
        ids = self.model.tokenizer(text).input_ids
        stock = stock_reply(self.model, ids, max_new_tokens, eos_token_id=None)
        assert answer["text"] == self.model.tokenizer.decode(stock, skip_special_tokens=True)
        return answer


TEXT = "The circle is red, the square is green, the triangle is blue, and the star above them is"


def test_a_text_that_goes_on_computes_only_what_is_new(model: Model) -> None:
    """Its states move to the request, after the reply or in its place."""
    texts = Texts(model)
    first = texts.say(TEXT)
    assert cached(first) == 0
    again = texts.say(TEXT)
    assert cached(again) == again["usage"]["prompt_tokens"] - 1
    longer = texts.say(TEXT + " white. The circle")
    assert cached(longer) >= first["usage"]["prompt_tokens"] - 2
    assert held(texts.chats) == 1
    assert stats(texts.chats).implicit_continued == 2


def test_a_text_with_another_end_copies_the_beginning() -> None:
    """As those of editors that complete what is typed; both can be continued."""
    texts = Texts(llama())
    texts.say(TEXT)
    other = texts.say(TEXT.replace("blue", "white"))
    assert 16 <= cached(other) < other["usage"]["prompt_tokens"] - 8
    assert held(texts.chats) == 2
    assert stats(texts.chats).implicit_continued == 0
    assert cached(texts.say(TEXT + " it")) > cached(other)


def test_a_text_makes_no_room_by_what_it_continues(model: Model) -> None:
    """On a device that has room for one of them alone."""
    texts, text = Texts(model, room=100), TEXT
    for number in range(4):
        answer = texts.say(text)
        assert (cached(answer) > 0) is (number > 0)
        text += answer["text"] + " and the circle"
    assert held(texts.chats) == 1


def test_a_text_that_fails_leaves_what_it_continues() -> None:
    """In a pass, or for want of room: a shorter one finds it."""
    texts = Texts(llama(), room=100)
    first, harness = texts.say(TEXT), texts.chats.harness
    raw = RawPrompt(session_id="failing", prompt=TEXT + " it is", max_new_tokens=30)
    failing = harness.submit(raw, **LONE)
    harness.steps(1)
    turn = harness.turn_of(failing)
    assert turn is not None
    harness.kind.turns.fail(turn, OutOfMemory("the device is full"))
    assert held(texts.chats) == 1
    raw = RawPrompt(session_id="long", prompt=TEXT + " white.", max_new_tokens=150)
    assert harness.ask(raw, **LONE)["error"]["code"] == "out_of_memory"
    assert held(texts.chats) == 1
    shorter = texts.say(TEXT + " white.")
    assert cached(shorter) >= first["usage"]["prompt_tokens"] - 2


def test_a_chat_and_a_text_with_its_ids_share_states() -> None:
    """A text is never taken for a conversation, which may begin with the same reply."""
    chats = Chats(llama())
    told = ("user", TEXT)
    answer = chats.say_alone(told)
    ids = [*chats.session("alone-1").state.log]
    raw = RawPrompt(
        session_id="raw",
        prompt=chats.harness.model.tokenizer.decode(ids[:-2]),
        max_new_tokens=4,
    )
    assert cached(chats.harness.ask(raw, creates_session=True, ephemeral=True)) >= 16
    assert held(chats) == 2
    assert cached(chats.say_alone(told, reply(answer), SQUARE)) >= len(ids) - 1


def test_short_texts_are_not_kept() -> None:
    """They are found by their first 16 tokens."""
    chats = Chats(llama())
    raw = RawPrompt(session_id="raw", prompt="It is", max_new_tokens=4)
    chats.harness.ask(raw, creates_session=True, ephemeral=True)
    assert held(chats) == 0


def test_an_image_under_a_url_is_not_fetched_again() -> None:
    """As long as the conversation shows it. Under the same URL another conversation may get another picture."""
    chats = Chats(llava())
    seen: Told = ("user", ["@1", "What color is it?"])
    first = chats.say_alone(seen)
    fetched: list[str | None] = []
    load = chats.harness.load

    def counting(images: Any, files: Any, read: Any, client: Any) -> Any:
        fetched.extend(image.url for image in images)
        return load(images, files, read, client)

    chats.harness.load = counting  # type: ignore[method-assign]
    chats.say_alone(seen, reply(first), ("user", ["@2", "And this?"]))
    assert fetched == ["@2"]
    chats.say_alone(("user", ["@1", "Who is it?"]))
    assert fetched == ["@2", "@1"]


def test_a_reader_whose_replies_are_not_in_the_conversation(model: Model) -> None:
    """A guard reads each question of another agent's conversation: it copies what it has computed of that itself."""
    chats = Chats(model)
    shown = ["@1"] if model.encoder is not None else []
    told: list[Told] = [("user", [*shown, "What is here?"])]
    for number in (1, 2, 3):
        answer = chats.say_alone(("system", "Answer."), *told)
        guard = chats.say_alone(("system", "Is it a question?"), *told)
        if number == 3 and model.text._owner.chat_template != REWRITING:
            assert guard["usage"]["prompt_tokens"] < 2 * cached(guard)
        told += [reply(answer), ("user", "And?")]


def test_a_beginning_that_others_have_is_computed_once(model: Model) -> None:
    """Up to another question about the same, the time at the end of a system prompt, and where a client has cut a reply."""
    chats = Chats(model)
    shown = ["@1"] if model.encoder is not None else []

    def asked(question: str, day: str = "Monday") -> list[Told]:
        system = f"Answer every question about what is here in one short word. It is {day}."
        return [("system", system), ("user", [*shown, f"A circle and a square. {question}"])]

    first = chats.say_alone(*asked("What is red?"))
    length = first["usage"]["prompt_tokens"]
    assert cached(chats.say_alone(*asked("Which one is yellow?"))) > length // 2
    assert 16 <= cached(chats.say_alone(*asked("What is red?", "Tuesday"))) < length // 2 + 64
    cut = ("assistant", first["text"][:3])
    assert cached(chats.say_alone(*asked("What is red?"), cut, SQUARE)) >= length


def test_the_longest_beginning_is_found_among_many() -> None:
    """Many later conversations may begin with the same system prompt."""
    chats = Chats(llama())
    system = ("system", "Answer every question about what is here in one short word.")
    first = chats.say_alone(system, COLOR)
    for number in range(65):
        chats.say_alone(system, ("user", f"{number}?"), checked=False)
    asked = chats.say_alone(system, COLOR, ("assistant", "Red"), SQUARE)
    assert cached(asked) >= first["usage"]["prompt_tokens"]


LONE: dict[str, Any] = {"creates_session": True, "ephemeral": True}
DOCUMENT = "A circle and a square, which is small and blue. "


def about(question: str, shown: list[str] | None = None) -> list[Told]:
    """A question about a document and, perhaps, a picture."""
    system = "Answer every question about what is here in one short word."
    return [("system", system), ("user", [*(shown or []), DOCUMENT + question])]


def submitted(chats: Chats, *asked: list[Told]) -> list[str]:
    return [
        chats.harness.submit(chats.chat(*told, session=f"s{number}"), **LONE)
        for number, told in enumerate(asked)
    ]


@pytest.mark.parametrize("steps", [0, 1, 4, 30])
def test_a_beginning_that_several_have_at_once_is_computed_once(model: Model, steps: int) -> None:
    """Others wait for the first, or copy what it has; it may decode already."""
    chats = Chats(model)
    shown = ["@1"] if model.encoder is not None else []
    asked = [about(question, shown) for question in ("What is red?", "Which is it?", "Why?")]
    first, others = asked[0], asked[1:]
    (leader,) = submitted(chats, first)
    chats.harness.steps(steps)
    requests = [
        chats.harness.submit(chats.chat(*told, session=f"s{number}"), **LONE)
        for number, told in enumerate(others, start=1)
    ]
    chats.harness.run()
    answers = [chats.harness.last(request) for request in (leader, *requests)]
    assert cached(answers[0]) == 0
    for number, (told, answer) in enumerate(zip(asked, answers, strict=True)):
        chats.check(told, f"s{number}")
        assert number == 0 or answer["usage"]["prompt_tokens"] - cached(answer) < 40
    assert held(chats) == 3


def test_what_several_have_at_once_goes_through_the_model_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many tokens as the usage has."""
    chats, computed = Chats(llama()), list[int]()

    def counted(self: Forward, ids: Any, *args: Any, **inputs: Any) -> Any:
        computed.append(len(ids))
        return call(self, ids, *args, **inputs)

    call = Forward.__call__
    monkeypatch.setattr(Forward, "__call__", counted)
    requests = submitted(chats, *(about(f"{number}?") for number in range(6)))
    chats.harness.run()
    usages = [chats.harness.last(request)["usage"] for request in requests]
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    lent = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    replies = sum(usage["completion_tokens"] for usage in usages)
    assert prompts - lent <= sum(computed) <= prompts - lent + 2 * replies
    assert prompts - lent < prompts / 3


@pytest.mark.parametrize("steps", [1, 3, 6, 9, 12])
@pytest.mark.parametrize("ends", ["drop", "fail"])
def test_the_others_go_on_with_what_the_first_has_computed(steps: int, ends: str) -> None:
    """Its client leaves, or its pass fails: the next one computes the rest for all."""
    chats = Chats(llama())
    asked = [about(f"{number}?") for number in range(4)]
    first, *others = submitted(chats, *asked)
    chats.harness.steps(steps)
    leader = chats.harness.turn_of(first)
    assert leader is not None
    length = leader.context.kv.length
    if ends == "drop":
        chats.harness.engine.drop(first)
        chats.harness.engine.tick()
    else:
        chats.harness.kind.turns.fail(leader, OutOfMemory("the device is full"))
    chats.harness.run()
    usages = [chats.harness.last(request)["usage"] for request in others]
    for number in (1, 2, 3):
        chats.check(asked[number], f"s{number}")
    computed = sum(u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    assert computed <= max(0, usages[0]["prompt_tokens"] - length) + 3 * 20


def test_those_that_waited_go_on_together() -> None:
    """None of them waits for another one that has no more than itself."""
    chats = Chats(llama(), config={"handler": {"prefillChunk": 400}})
    requests = submitted(chats, *(about(f"{i}?") for i in range(4)))
    running = [turn for turn in map(chats.harness.turn_of, requests) if turn is not None]
    chats.harness.steps(1)
    assert [turn.num_generated for turn in running] == [1, 0, 0, 0]
    chats.harness.steps(1)
    assert [turn.num_generated for turn in running] == [2, 1, 1, 1]
    chats.harness.run()


def test_nothing_is_shared_at_once_with_another_principal() -> None:
    """Each computes all of its own."""
    chats = Chats(llama(), config={"handler": {"auth": {"mode": "header", "header": "x-user"}}})
    requests = [
        chats.harness.submit(chats.chat(*about("Why?"), session=internal_id(name, "1")), **LONE)
        for name in ("alice", "bob")
    ]
    chats.harness.run()
    assert [cached(chats.harness.last(request)) for request in requests] == [0, 0]


def test_short_beginnings_are_not_waited_for() -> None:
    """Two prompts with the same few words are computed in the same steps."""
    chats = Chats(llama(), config={"handler": {"prefillChunk": 400}})
    asked = [("user", f"{number} {DOCUMENT}") for number in range(2)]
    first, second = submitted(chats, *([told] for told in asked))
    chats.harness.steps(1)
    turns = [chats.harness.turn_of(name) for name in (first, second)]
    assert [turn and turn.num_generated for turn in turns] == [1, 1]
    chats.harness.run()


def test_one_that_fails_moves_no_other_of_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device was full when the short one could have taken what the long one has."""
    chats = Chats(llama(), config={"handler": {"prefillChunk": 200}})
    short = [("user", DOCUMENT * 2 + "And?")]
    long_one = DOCUMENT * 2 + "tell more words " * 25
    texts = "Something else entirely, and quite long. " * 25, "x y z, in a row 1. " * 10, long_one
    _, _, name = submitted(chats, *([("user", text)] for text in texts))
    chats.harness.steps(1)
    long, run = chats.harness.turn_of(name), Runner.run
    with monkeypatch.context() as full:
        full.setattr(Context, "lend_kv", lambda *_: None)
        chats.harness.submit(chats.chat(*short, session="s3"), **LONE)
        chats.harness.pump()

    def fails(self: Runner, chunks: Any) -> Any:
        if any(sequence is long for sequence, _ in chunks):
            raise torch.OutOfMemoryError("the device is full")
        return run(self, chunks)

    monkeypatch.setattr(Runner, "run", fails)
    chats.harness.run()
    assert "error" in chats.harness.last(name)
    chats.check(short, "s3")
