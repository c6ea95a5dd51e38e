"""Forks: what a session with a copied history says, and what it keeps."""

from __future__ import annotations

import pytest

from tests.support.branching import (
    MAKERS,
    NEW_TOKENS,
    QUESTIONS,
    cached,
    check,
    code,
    fork,
    log_of,
    opened,
    rewind,
    say,
)
from tests.support.harness import Harness
from tests.support.pictures import noise
from tests.support.tiny import llava
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Close, Fork, Image, Info, Open, Prompt, Rewind


def test_a_fork_and_its_source_answer_alike_and_then_go_their_own_ways(model: Model) -> None:
    """Both are exact, both reuse what was computed, and neither hears what is said to the other."""
    harness = opened(model)
    for question in QUESTIONS[:2]:
        say(harness, "s", question)
    computed = harness.engine.table.get("s").state.kv.length
    answer = fork(harness, "f")
    assert (answer["session_id"], answer["forked_from"], answer["turn"]) == ("f", "s", 2)
    assert answer["usage"]["prompt_tokens"] == len(log_of(harness))
    assert cached(answer) == computed > 0
    replies = [say(harness, name, QUESTIONS[2]) for name in ("f", "s")]
    assert replies[0] == {**replies[1], "session_id": "f"}
    for name, question in (("f", "Left"), ("s", "Right"), ("f", "Left again")):
        assert cached(say(harness, name, question)) > 0
        check(harness, name)
    assert harness.ask(Info(session_id="f"))["turns"] == 5
    assert harness.ask(Info(session_id="s"))["turns"] == 4


def test_a_fork_at_an_earlier_turn_is_a_rewound_one(model: Model) -> None:
    """And the source keeps what came behind."""
    harness = opened(model)
    for question in QUESTIONS:
        say(harness, "s", question)
    for turn in range(4):
        name = f"f{turn}"
        assert fork(harness, name, at_turn=turn)["turn"] == turn
        fork(harness, f"whole{turn}")
        rewind(harness, turn, f"whole{turn}")
        assert log_of(harness, name) == log_of(harness, f"whole{turn}")
        assert say(harness, name, "Else?")["turn"] == turn + 1
        check(harness, name)
        for ended in (name, f"whole{turn}"):
            harness.close(ended)
    assert harness.ask(Info(session_id="s"))["turns"] == 3


@pytest.mark.parametrize("evicted", [False, True])
def test_a_turn_in_progress_is_not_part_of_a_fork(model: Model, evicted: bool) -> None:
    """The fork has the last committed turn; the turn goes on as if nothing had happened."""
    harness, alone = opened(model), opened(model)
    for each in (harness, alone):
        say(each, "s", QUESTIONS[0])
    expected = say(alone, "s", QUESTIONS[1])["text"]
    if evicted:
        harness.engine.table.evict_idle()
    running = harness.submit(Prompt(session_id="s", prompt=QUESTIONS[1], max_new_tokens=NEW_TOKENS))
    for number in range(4):
        harness.steps(2)
        answer = harness.last(
            harness.submit(Fork(session_id="s", new_session_id=f"f{number}"), creates_session=True)
        )
        assert answer["turn"] == 1
    harness.run()
    assert harness.last(running)["text"] == expected
    check(harness, "s")
    for number in range(4):
        assert say(harness, f"f{number}", QUESTIONS[1])["text"] == expected
        check(harness, f"f{number}")


def test_images_are_shared_and_those_of_forgotten_turns_go() -> None:
    """Neither a fork nor a rewind runs the vision tower, and an image of a later turn is not seen any more."""
    for name in ("llava", "qwen2_vl"):
        model = MAKERS[name]()
        harness = opened(model)
        assert model.encoder is not None
        say(harness, "s", QUESTIONS[0])
        harness.media["later"] = noise(3)
        say(harness, "s", "And this?", images=(Image(url="later"),))
        encoded = model.encoder.num_encoded
        fork(harness, "f")
        fork(harness, "early", at_turn=1)
        images = harness.engine.table.get("s").state.images
        assert harness.engine.table.get("f").state.images == images
        assert harness.engine.table.get("early").state.images == images[:2]
        assert rewind(harness, 1)["turn"] == 1
        assert harness.ask(Info(session_id="s"))["images"] == 2
        harness.engine.table.evict_idle()
        for session in ("s", "f", "early"):
            say(harness, session, QUESTIONS[2])
            check(harness, session)
        assert model.encoder.num_encoded == encoded


def test_a_fork_outlives_its_source(plain: Model) -> None:
    """Its history is its own."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    fork(harness, "f")
    harness.ask(Close(session_id="s"))
    say(harness, "f", QUESTIONS[1])
    check(harness, "f")


def test_a_fork_begins_a_life_of_its_own(plain: Model) -> None:
    """Idle time and lifetime start anew; `ttl_s` and `metadata` are as in `open`, metadata by default the source's."""
    harness = opened(plain)
    harness.clock.now += 50
    request = harness.submit(
        Fork(session_id="s", new_session_id="f", ttl_s=100), creates_session=True
    )
    (event,) = harness.events[request]
    assert (event.session_id, event.opened_until) == ("f", 1_700_000_150)
    assert harness.last(request)["expires_at"] == "2023-11-14T22:15:50Z"
    fork(harness, "other", metadata={})
    sessions = {session.session_id: session for session in harness.engine.table}
    assert sessions["f"].metadata == {"user": 7}
    assert sessions["other"].metadata == {}
    harness.clock.now += 50
    assert "error" not in harness.ask(Info(session_id="f"))
    harness.clock.now += 50
    assert code(harness.ask(Info(session_id="f"))) == "session_expired"


def test_a_session_that_is_being_opened_cannot_be_forked() -> None:
    """There is no history yet that could be copied."""
    harness = Harness(llava())
    harness.media["slow"] = noise(1)
    opening = harness.submit(
        Open(session_id="s", images=(Image(url="slow"),)), creates_session=True
    )
    for command in (
        Fork(session_id="s", new_session_id="f"),
        Rewind(session_id="s", to_turn=0),
    ):
        assert code(harness.last(harness.submit(command))) == "turn_gap"
    harness.run()
    assert "error" not in harness.last(opening)
    assert fork(harness, "f")["turn"] == 0


def test_an_id_that_is_taken_is_refused(plain: Model) -> None:
    """Also the source's own; whoever has it keeps it."""
    harness = opened(plain)
    harness.open("other")
    for name in ("other", "s"):
        answer = fork(harness, name)
        assert (code(answer), answer["error"]["field"]) == ("session_exists", "new_session_id")
    assert code(harness.ask(Fork(session_id="s"))) == "invalid_request"
    assert len(harness.engine.table) == 2


def test_a_full_table_takes_no_fork(plain: Model) -> None:
    """It counts as a session; the source goes on."""
    harness = opened(plain, maxNumSequence=2)
    say(harness, "s", QUESTIONS[0])
    fork(harness, "f")
    answer = fork(harness, "g")
    assert code(answer) == "too_many_sessions"
    assert answer["error"]["retry_after_s"] > 0
    harness.close("f")
    assert fork(harness, "g")["turn"] == 1
    say(harness, "s", QUESTIONS[1])
    check(harness, "s")


def test_a_fork_whose_states_do_not_fit_computes_them_again(plain: Model) -> None:
    """The source keeps its own; others give theirs up, the least recently used first."""
    probe = opened(plain)
    say(probe, "s", "word " * 40)
    size = probe.engine.table.device_bytes
    harness = opened(plain, handler={"deviceCacheBytes": int(size * 2.5)})
    harness.open("old")
    for name in ("old", "s"):
        say(harness, name, "word " * 40)
    assert cached(fork(harness, "f")) > 0
    assert harness.ask(Info(session_id="old"))["residency"] == "record"
    harness.close("f")
    tight = opened(plain, handler={"deviceCacheBytes": int(size * 1.5)})
    say(tight, "s", "word " * 40)
    assert cached(fork(tight, "f")) == 0
    assert tight.ask(Info(session_id="s"))["residency"] == "device"
    for name in ("s", "f"):
        assert say(tight, name, QUESTIONS[0])["turn"] == 2
        check(tight, name)
    assert tight.engine.table.device_bytes <= size * 1.5
