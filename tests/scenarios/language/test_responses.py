"""Responses: turns that are continued, branched, read again and discarded by session and number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.chats import Chats, Told, cached
from tests.support.memory_store import MemoryStore
from tests.support.store_engines import code, expire
from tests.support.tiny import REWRITING, llama, llava, qwen2_vl
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Discard, Recall, Respond
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Info

MAKERS: dict[str, Callable[[], Model]] = {
    "llama": llama,
    "rewriting": lambda: llama(REWRITING),
    "llava": llava,
    "qwen2_vl": qwen2_vl,
}
COLOR: Told = ("user", "What color is it?")
SQUARE: Told = ("user", "And the square?")
WHY: Told = ("user", "Why?")


@pytest.fixture(scope="module", params=sorted(MAKERS))
def model(request: pytest.FixtureRequest) -> Model:
    """Templates that append and one that rewrites; models that see and those that do not."""
    return MAKERS[request.param]()


def respond(
    chats: Chats, *told: Told, session: str = "s", after: int | None = 0, **fields: Any
) -> Respond:
    """The request for a response; a branch gets the session `branch`."""
    chat = chats.chat(*told, session=session)
    asked = {"note": "{}", "new_session_id": None if after == 0 else "branch", **fields}
    return Respond(
        session_id=session,
        after=after,
        messages=chat.messages,
        images=chat.images,
        max_new_tokens=chat.max_new_tokens,
        **asked,
    )


def ask(chats: Chats, request: Respond | Recall | Discard, **fields: Any) -> dict[str, Any]:
    is_new = isinstance(request, Respond) and request.after == 0
    answer: dict[str, Any] = chats.harness.ask(request, creates_session=is_new, **fields)
    return answer


def reply(answer: dict[str, Any]) -> Told:
    return ("assistant", answer["text"])


def test_a_response_is_continued_by_what_is_new(model: Model) -> None:
    """With an image in each message. Instructions are those of the turn alone, and the same ones cost nothing."""
    chats = Chats(model)
    told: list[Told] = []
    for number in (1, 2, 3):
        shown = [f"@{number}"] if model.encoder is not None else []
        new: Told = ("user", [*shown, f"What is in number {number}?"])
        answer = ask(chats, respond(chats, new, after=number - 1, instructions="Be brief."))
        told.append(new)
        chats.check([("system", "Be brief."), *told])
        assert (answer["session_id"], answer["turn"]) == ("s", number)
        assert (cached(answer) > 0) is (number > 1)
        told.append(reply(answer))
    ask(chats, respond(chats, SQUARE, after=3, instructions="Sing."))
    chats.check([("system", "Sing."), *told, SQUARE])


def test_an_older_response_branches(model: Model) -> None:
    """The session goes on as if nothing had happened, and so does the branch."""
    chats = Chats(model)
    shown = ["@1"] if model.encoder is not None else []
    color: Told = ("user", [*shown, "What color is it?"])
    first = ask(chats, respond(chats, color))
    second = ask(chats, respond(chats, SQUARE, after=1))
    branch = ask(chats, respond(chats, WHY, after=1))
    assert (branch["session_id"], branch["turn"]) == ("branch", 2)
    assert cached(branch) > 0
    chats.check([color, reply(first), WHY], "branch")
    third = ask(chats, respond(chats, WHY, after=2))
    assert (third["session_id"], third["turn"]) == ("s", 3)
    chats.check([color, reply(first), SQUARE, reply(second), WHY])
    ask(chats, respond(chats, SQUARE, session="branch", after=2, new_session_id="other"))
    chats.check([color, reply(first), WHY, reply(branch), SQUARE], "branch")


def test_a_client_may_expect_what_the_session_has() -> None:
    """Replies are its own affair; other messages are refused, and nothing is changed."""
    chats = Chats(llama())
    first = ask(chats, respond(chats, COLOR))
    said = chats.chat(COLOR, ("assistant", "I forgot."), session="s").messages
    second = ask(chats, respond(chats, SQUARE, after=1, expects=said))
    assert second["turn"] == 2
    chats.check([COLOR, reply(first), SQUARE])
    for wrong in ((), chats.chat(SQUARE, session="s").messages):
        answer = ask(chats, respond(chats, WHY, after=2, expects=wrong))
        assert (code(answer), answer["error"]["field"]) == ("invalid_request", "input")
    assert chats.harness.ask(Info(session_id="s"))["turns"] == 2


def test_messages_without_a_reply_are_read_by_the_next_turn(model: Model) -> None:
    """Before the first turn, and between two; with images."""
    chats = Chats(model)
    shown = ["@1"] if model.encoder is not None else []
    seen: Told = ("user", [*shown, "Look at this."])
    added = ask(chats, respond(chats, seen, generates=False))
    assert (added["turn"], added["text"], added["finish_reason"]) == (1, "", "stop")
    num_computed = added["usage"]["prompt_tokens"]
    assert chats.session().state.kv.length == num_computed > 0
    first = ask(chats, respond(chats, COLOR, after=None))
    chats.check([seen, COLOR])
    assert cached(first) >= num_computed - 2
    more = ["@2"] if model.encoder is not None else []
    other: Told = ("user", [*more, "And at this."])
    ask(chats, respond(chats, other, after=None, generates=False))
    last = ask(chats, respond(chats, SQUARE, after=None))
    assert last["turn"] == 4
    assert cached(last) > 0
    chats.check([seen, COLOR, reply(first), other, SQUARE])
    chats.harness.engine.check_integrity()


def test_a_session_begins_with_nothing() -> None:
    """An engine that died had the same request."""
    store = MemoryStore()
    chats, other = Chats(llama(), store), Chats(llama(), store)
    request = respond(chats, generates=False, note="n")
    made = ask(chats, request, request_id="lost")
    again = ask(other, request, request_id="lost", is_retry=True)
    assert (made["note"], again["note"], made["turn"], again["turn"]) == ("n", "n", 1, 1)
    ask(other, respond(other, COLOR, after=None))
    other.check([COLOR])
    other.harness.engine.check_integrity()


def test_another_engine_of_the_same_store_goes_on(model: Model) -> None:
    """With notes, with messages that have no reply yet, and with a branch."""
    store = MemoryStore()
    chats, other = Chats(model, store), Chats(model, store)
    shown = ["@1"] if model.encoder is not None else []
    color: Told = ("user", [*shown, "What color is it?"])
    first = ask(chats, respond(chats, color, note="first"))
    second = ask(chats, respond(chats, SQUARE, after=1, note="second"))
    more = ["@2"] if model.encoder is not None else []
    added: Told = ("user", [*more, "And this?"])
    ask(chats, respond(chats, added, after=2, generates=False, note="third"))
    recalled = ask(other, Recall(session_id="s", turn=2, all=True))
    assert recalled["text"] == second["text"]
    assert [one["note"] for one in (*recalled["earlier"], recalled)] == ["first", "second"]
    ask(other, respond(other, WHY, after=3))
    other.check([color, reply(first), SQUARE, reply(second), added, WHY])
    ask(other, respond(other, WHY, after=1))
    other.check([color, reply(first), WHY], "branch")
    assert ask(chats, Recall(session_id="branch", turn=2))["turn"] == 2


def test_a_repeated_request_makes_one_branch() -> None:
    """Of an engine that died: before the turn was written, or after."""
    store = MemoryStore()
    chats, second, third = (Chats(llama(), store) for _ in range(3))
    first = ask(chats, respond(chats, COLOR))
    ask(chats, respond(chats, SQUARE, after=1))
    request = respond(chats, WHY, after=1)
    chats.harness.submit(request, "lost")
    chats.harness.steps(1)
    made = ask(second, request, request_id="lost", is_retry=True)
    assert (made["session_id"], made["turn"]) == ("branch", 2)
    second.check([COLOR, reply(first), WHY], "branch")
    again = ask(third, request, request_id="lost", is_retry=True)
    assert again["replayed"]
    assert again["text"] == made["text"]
    assert third.harness.ask(Info(session_id="branch"))["turns"] == 2


def test_a_response_that_is_not_stored_leaves_nothing() -> None:
    """Alone, or after one that is stored."""
    store = MemoryStore()
    chats = Chats(llama(), store)
    first = ask(chats, respond(chats, COLOR))
    before = store.list("sessions")
    for after in (1, None):  # the end of a conversation
        request = respond(chats, SQUARE, after=after)
        answer = ask(chats, request, ephemeral=True)
        assert cached(answer) > 0
        chats.check([COLOR, reply(first), SQUARE], "branch")
    assert store.list("sessions") == before
    assert code(ask(chats, Recall(session_id="branch", turn=2))) == "session_not_found"
    assert code(ask(chats, Recall(session_id="s", turn=2))) == "turn_gap"


def test_a_turn_in_the_background_needs_no_client() -> None:
    """It is answered at once; its client may disconnect, and nobody asks for a long time."""
    chats = Chats(llama())
    harness = chats.harness
    one = harness.submit(respond(chats, COLOR, background=True), creates_session=True, pull=True)
    harness.steps(2)
    assert "finish_reason" not in harness.last(one)
    assert "finish_reason" not in ask_now(chats, Recall(session_id="s", turn=1))
    harness.engine.drop(one)
    harness.clock.now += 50
    harness.engine.tick()
    harness.run()
    assert ask(chats, Recall(session_id="s", turn=1))["finish_reason"] == "length"
    chats.check([COLOR])


def ask_now(chats: Chats, request: Recall) -> dict[str, Any]:
    """The answer that is there at once, without a step of the engine."""
    name = chats.harness.submit(request)
    return chats.harness.last(name)


def test_a_turn_is_ended_by_another_request() -> None:
    """While it runs, and while it waits for the one before it. What is there stays."""
    chats = Chats(llama())
    harness = chats.harness
    harness.submit(respond(chats, COLOR, background=True), creates_session=True, pull=True)
    waiting = harness.submit(respond(chats, SQUARE, after=1, background=True), pull=True)
    harness.steps(4)
    late = harness.submit(Recall(session_id="s", turn=2, cancels=True))
    now = harness.submit(Recall(session_id="s", turn=1, cancels=True))
    harness.run()
    assert harness.last(now)["finish_reason"] == "cancelled"
    assert harness.last(now)["note"] == "{}"
    assert (harness.last(late)["finish_reason"], harness.last(late)["turn"]) == ("cancelled", 2)
    assert harness.last(waiting)["turn"] == 2
    harness.engine.check_integrity()


def test_a_stream_is_read_again_from_its_beginning() -> None:
    """While the turn runs, and after it; with the note first."""
    chats = Chats(llama())
    harness = chats.harness
    harness.submit(
        respond(chats, COLOR, note="n", background=True), creates_session=True, pull=True
    )
    harness.steps(3)
    late = harness.submit(Recall(session_id="s", turn=1, stream=True))
    harness.run()
    first = harness.events[late][0]
    assert (first.kind, first.turn, first.session_id) == (EventKind.ACCEPTED, 1, "s")
    text = "".join(part.get("text", "") for part in harness.documents(late))
    whole = ask(chats, Recall(session_id="s", turn=1, stream=True))
    assert whole["text"] == text
    assert (whole["note"], harness.last(late)["note"]) == ("n", "n")


def test_a_discarded_response_is_gone_and_the_later_ones_stay() -> None:
    """Here and at another engine. Turns at the end are removed, and so is a session without any."""
    store = MemoryStore()
    chats = Chats(llama(), store)
    first = ask(chats, respond(chats, COLOR))
    second = ask(chats, respond(chats, SQUARE, after=1))
    assert ask(chats, Discard(session_id="s", turn=1))["closed"] is False
    for engine in (chats, Chats(llama(), store)):
        assert code(ask(engine, Recall(session_id="s", turn=1))) == "session_not_found"
        assert code(ask(engine, respond(engine, WHY, after=1))) == "session_not_found"
        assert ask(engine, Recall(session_id="s", turn=2))["text"] == second["text"]
    last = Chats(llama(), store)
    third = ask(last, respond(last, WHY, after=2))
    last.check([COLOR, reply(first), SQUARE, reply(second), WHY])
    assert third["turn"] == 3
    ask(last, Discard(session_id="s", turn=2))
    assert last.harness.ask(Info(session_id="s"))["turns"] == 3
    assert ask(last, Discard(session_id="s", turn=3))["closed"] is True
    assert code(ask(last, Recall(session_id="s", turn=3))) == "session_closed"
    assert not store.list("sessions")


def test_the_last_response_is_discarded_and_the_one_before_goes_on() -> None:
    """In its own session."""
    store = MemoryStore()
    chats = Chats(llama(), store)
    first = ask(chats, respond(chats, COLOR))
    ask(chats, respond(chats, SQUARE, after=1))
    ask(chats, Discard(session_id="s", turn=2))
    assert chats.harness.ask(Info(session_id="s"))["turns"] == 1
    again = Chats(llama(), store)
    answer = ask(again, respond(again, WHY, after=1))
    assert (answer["session_id"], answer["turn"]) == ("s", 2)
    again.check([COLOR, reply(first), WHY])


@pytest.mark.parametrize("crashes", [False, True])
def test_a_branch_ends_with_its_own_responses(crashes: bool) -> None:
    """The turns that it copied are no responses of its own, also at an engine that adopts it from the store."""
    store = MemoryStore()
    chats = Chats(llama(), store)
    ask(chats, respond(chats, ("user", "A secret."), note="secret"))
    ask(chats, respond(chats, SQUARE, after=1))
    ask(chats, respond(chats, WHY, after=1))
    ask(chats, respond(chats, SQUARE, session="branch", after=2))
    if crashes:
        chats = Chats(llama(), store)
    earlier = ask(chats, Recall(session_id="branch", turn=2, all=True))["earlier"]
    assert [one["note"] for one in earlier] == ["secret"]
    for request in (
        Recall(session_id="branch", turn=1),
        respond(chats, WHY, session="branch", after=1, new_session_id="other"),
        Discard(session_id="branch", turn=1),
    ):
        assert code(ask(chats, request)) == "session_not_found"
    assert ask(chats, Discard(session_id="branch", turn=3))["closed"] is False
    assert ask(chats, Discard(session_id="branch", turn=2))["closed"] is True
    assert ask(chats, Discard(session_id="s", turn=2))["closed"] is False
    assert ask(chats, Discard(session_id="s", turn=1))["closed"] is True
    assert code(ask(chats, Recall(session_id="branch", turn=1))) == "session_closed"
    assert not len(chats.harness.engine.table)
    assert not store.list("sessions")


def test_a_branch_of_a_conversation_ends_with_its_responses() -> None:
    """The conversation stays until it is closed, without a response too."""
    chats = Chats(llama())
    ask(chats, respond(chats, generates=False, note="conversation"))
    ask(chats, respond(chats, COLOR, after=None))
    ask(chats, respond(chats, SQUARE, after=None))
    ask(chats, respond(chats, WHY, after=2))
    assert ask(chats, Discard(session_id="branch", turn=3))["closed"] is True
    for turn in (3, 2):
        assert ask(chats, Discard(session_id="s", turn=turn))["closed"] is False


def test_a_response_answers_messages_that_are_there() -> None:
    """Without messages of its own nothing is added. With none at all there is nothing to answer."""
    chats = Chats(llama())
    ask(chats, respond(chats, COLOR, generates=False))
    first = ask(chats, respond(chats, after=None))
    chats.check([COLOR])
    ask(chats, respond(chats, SQUARE, after=None, generates=False))
    ask(chats, respond(chats, after=None))
    chats.check([COLOR, reply(first), SQUARE])
    ask(chats, respond(chats, session="empty", generates=False))
    refused = ask(chats, respond(chats, session="empty", after=None))
    assert (code(refused), refused["error"]["field"]) == ("invalid_request", "prompt")


def test_a_response_in_progress_is_not_discarded() -> None:
    """A turn in progress is a conflict, a missing one is missing."""
    chats = Chats(llama())
    harness = chats.harness
    harness.submit(respond(chats, COLOR, background=True), creates_session=True, pull=True)
    harness.steps(2)
    busy = harness.last(harness.submit(Discard(session_id="s", turn=1)))
    assert (code(busy), busy["error"]["field"]) == ("turn_gap", "turn")
    missing = harness.last(harness.submit(Discard(session_id="s", turn=2)))
    assert (code(missing), "field" in missing["error"]) == ("turn_gap", False)
    harness.run()
    assert ask(chats, Discard(session_id="s", turn=1))["closed"] is True


def test_messages_that_are_too_long_are_named() -> None:
    """Not a system prompt, which they are not."""
    chats = Chats(llama())
    refused = ask(chats, respond(chats, ("user", "why " * 500), generates=False))
    assert (code(refused), refused["error"]["field"]) == ("context_too_long", "prompt")


def test_sessions_of_responses_make_place_for_others() -> None:
    """The least recently used one goes, not the one that is continued. Sessions of other requests stay."""
    chats = Chats(llama(), config={"sequenceBatching": False, "maxNumSequence": 3})
    chats.harness.open("own")
    for name in ("a", "b", "c"):
        ask(chats, respond(chats, COLOR, session=name))
    assert code(ask(chats, Recall(session_id="a", turn=1))) == "session_expired"
    ask(chats, respond(chats, SQUARE, session="b", after=1))
    ask(chats, respond(chats, COLOR, session="d"))
    assert code(ask(chats, Recall(session_id="c", turn=1))) == "session_expired"
    assert ask(chats, Recall(session_id="b", turn=2))["turn"] == 2
    assert chats.harness.ask(Info(session_id="own"))["turns"] == 0


def test_a_branch_that_fails_is_not_left() -> None:
    """Neither in memory nor in the store. The response before it is as it was."""
    store = MemoryStore()
    chats = Chats(llama(), store)
    ask(chats, respond(chats, COLOR))
    ask(chats, respond(chats, SQUARE, after=1))
    failed = ask(chats, respond(chats, ("user", "why " * 500), after=1))
    assert code(failed) == "context_too_long"
    chats.harness.run()
    assert len(chats.harness.engine.table) == 1
    assert not store.list("sessions/branch")
    assert ask(chats, respond(chats, WHY, after=1))["turn"] == 2


def test_responses_expire_as_sessions_do() -> None:
    """All of a session at once."""
    chats = Chats(llama())
    ask(chats, respond(chats, COLOR))
    expire(chats.harness)
    assert code(ask(chats, Recall(session_id="s", turn=1))) == "session_expired"
    assert code(ask(chats, respond(chats, WHY, after=1))) == "session_expired"


@pytest.mark.parametrize("stores", ["yyyy", "nnnn", "ynny", "nyyn"])
def test_a_client_that_sends_all_items_computes_only_what_is_new(model: Model, stores: str) -> None:
    """Each response opens a session, or is not stored. It copies from the one before, with images too."""
    chats = Chats(model)
    unstored = [number for number in (1, 2, 3, 4) if stores[number - 1] == "n"]
    told: list[Told] = []
    num_before = 0
    for number in (1, 2, 3, 4):
        shown = [f"@{number}"] if number < 4 and model.encoder is not None else []
        told.append(("user", [*shown, f"What is in number {number}?"]))
        name = f"s{number}"
        request = respond(chats, *told, session=name, instructions="Be brief.")
        answer = ask(chats, request, ephemeral=number in unstored)
        chats.check([("system", "Be brief."), *told], name)
        assert (cached(answer) > 0) is (number > 1)
        # A stored one is read as text again, which need not be the tokens that a random model wrote.
        if stores != "ynny" and model.text._owner.chat_template != REWRITING:
            assert cached(answer) >= num_before
        num_before = answer["usage"]["prompt_tokens"]
        told.append(reply(answer))
    if 1 not in unstored:
        chats.harness.close("s1")
    chats.harness.engine.tick()
    chats.harness.engine.check_integrity()


def test_clients_that_share_texts_keep_their_instructions(model: Model) -> None:
    """Two agents read the same items, each under its own instructions: each copies what it has computed itself."""
    chats = Chats(model)
    shown = ["@1"] if model.encoder is not None else []
    told: list[Told] = [("user", [*shown, "What is here?"])]
    for number in (1, 2, 3):
        answers = [
            ask(chats, respond(chats, *told, session=f"{role}{number}", instructions=role))
            for role in ("Look at the colors.", "Count what there is.")
        ]
        if number == 3 and model.text._owner.chat_template != REWRITING:
            known = [answer["usage"]["prompt_tokens"] - cached(answer) for answer in answers]
            assert max(known) < cached(answers[0])
        told += [reply(answers[0]), ("user", "And?")]


def test_a_request_that_fails_leaves_no_states_of_its_own_instructions() -> None:
    """It had a copy of a history under other instructions, and states of its own for the same texts."""
    chats = Chats(llama())

    def send(name: str, instructions: str, *told: Told) -> dict[str, Any]:
        request = respond(chats, *told, session=name, instructions=instructions)
        answer = ask(chats, request, ephemeral=True)
        chats.check([("system", instructions), *told], name)
        return answer

    look, count = "Look at the colors of the shapes.", "Count all that there is."
    told = [COLOR, reply(send("b1", count, COLOR))]
    send("a1", look, *told, SQUARE)
    request = respond(chats, *told, SQUARE, session="a2", instructions=look)
    dropped = chats.harness.submit(request, creates_session=True, ephemeral=True)
    chats.harness.steps(3)
    chats.harness.engine.drop(dropped)
    chats.harness.engine.tick()
    chats.harness.engine.check_integrity()
    send("b2", count, *told, SQUARE)
    send("b3", count, *told, WHY)
    send("a3", look, *told, WHY)
