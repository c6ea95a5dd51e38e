"""Forks and rewinds: what a session with a copied or shortened history says, and what it keeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, REWRITING, llama, llava
from ts_stateful.engine.model import Model
from ts_stateful.protocol import Cancel, Close, Continue, Fork, Image, Info, Open, Prompt, Rewind

QUESTIONS = ("What color is the circle?", "And the square?", "Tell me a story, äöü 🙂, please.")
NEW_TOKENS = 12
MAKERS: dict[str, Callable[[], Model]] = {**MODELS, "rewriting": lambda: llama(REWRITING)}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def model(request: pytest.FixtureRequest) -> Model:
    """Every architecture, and a chat template that rewrites history."""
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def plain() -> Model:
    """One model where architectures make no difference."""
    return llama()


def opened(model: Model, **config: object) -> Harness:
    harness = Harness(model, dict(config))
    pictures = [noise(1), noise(2, 80, 30)] if model.vision else []
    assert "error" not in harness.open("s", pictures, metadata={"user": 7})
    return harness


def say(harness: Harness, session_id: str, text: str, **fields: Any) -> dict[str, Any]:
    return harness.prompt(session_id, text, **{"max_new_tokens": NEW_TOKENS, **fields})


def check(harness: Harness, session_id: str) -> None:
    reference_reply(harness.model, harness, session_id, NEW_TOKENS)


def fork(harness: Harness, name: str, source: str = "s", **fields: Any) -> dict[str, Any]:
    return harness.ask(Fork(session_id=source, new_session_id=name, **fields), opens=True)


def rewind(harness: Harness, to_turn: int, session_id: str = "s") -> dict[str, Any]:
    return harness.ask(Rewind(session_id=session_id, to_turn=to_turn))


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def code(document: dict[str, Any]) -> str:
    return str(document["error"]["code"])


def log_of(harness: Harness, session_id: str = "s") -> list[int]:
    return list(harness.engine.table.get(session_id).state.log)


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


def test_a_rewound_session_is_what_it_was(model: Model) -> None:
    """Turn for turn back, to the same log, where the same question gets the same answer."""
    harness = opened(model)
    logs, texts = [log_of(harness)], []
    for question in QUESTIONS:
        texts.append(say(harness, "s", question)["text"])
        logs.append(log_of(harness))
    for turn in (2, 1, 0):
        answer = rewind(harness, turn)
        assert answer == {"session_id": "s", "turn": turn, "tokens": len(logs[turn])}
        assert log_of(harness) == logs[turn]
        again = say(harness, "s", QUESTIONS[turn])
        assert (again["text"], again["turn"]) == (texts[turn], turn + 1)
        check(harness, "s")
        rewind(harness, turn)


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


def test_what_the_template_only_appends_to_stays_computed(plain: Model) -> None:
    """After a rewind nothing of what is left has to be computed again."""
    harness = opened(plain)
    for question in QUESTIONS:
        say(harness, "s", question)
    tokens = rewind(harness, 1)["tokens"]
    assert cached(say(harness, "s", "Else?")) == tokens


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
            harness.submit(Fork(session_id="s", new_session_id=f"f{number}"), opens=True)
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
        assert model.vision is not None
        say(harness, "s", QUESTIONS[0])
        harness.pictures["later"] = noise(3)
        say(harness, "s", "And this?", images=(Image(url="later"),))
        encoded = model.vision.num_encoded
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
        assert model.vision.num_encoded == encoded


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
    request = harness.submit(Fork(session_id="s", new_session_id="f", ttl_s=100), opens=True)
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


def test_forking_and_rewinding_are_uses(plain: Model) -> None:
    """They postpone expiry as a prompt does."""
    harness = opened(plain)
    harness.clock.now += 59
    assert "error" not in fork(harness, "f")
    harness.clock.now += 59
    assert "error" not in rewind(harness, 0)
    harness.clock.now += 59
    assert "error" not in harness.ask(Info(session_id="s"))


def test_records_of_what_is_left_answer_retries_and_the_others_are_gone(plain: Model) -> None:
    """In the fork as in the source; a number that was gone back behind is a new turn."""
    harness = opened(plain)
    for number, question in enumerate(QUESTIONS, start=1):
        say(harness, "s", question, turn=number)
    fork(harness, "f")
    assert say(harness, "f", QUESTIONS[2], turn=3)["replayed"]
    rewind(harness, 1)
    assert say(harness, "s", QUESTIONS[0], turn=1)["replayed"]
    assert code(harness.ask(Continue(session_id="s", turn=2))) == "turn_gap"
    answer = say(harness, "s", "Another one", turn=2)
    assert "replayed" not in answer
    assert harness.ask(Continue(session_id="s", turn=2))["text"] == answer["text"]
    check(harness, "s")


def test_a_failed_turn_is_forgotten_with_what_it_followed(plain: Model) -> None:
    """`continue` does not speak of a failure from before a rewind."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    harness.engine.drop(harness.submit(Prompt(session_id="s", prompt="Go", max_new_tokens=900)))
    harness.steps(3)
    harness.clock.now += 10.1
    harness.engine.tick()
    assert "rolled back" in harness.ask(Continue(session_id="s", turn=2))["error"]["message"]
    rewind(harness, 1)
    assert "there is no" in harness.ask(Continue(session_id="s", turn=2))["error"]["message"]


def test_going_back_to_where_one_is_changes_nothing(plain: Model) -> None:
    """So a rewind may be repeated."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    log, kv = log_of(harness), harness.engine.table.get("s").state.kv.length
    for _ in range(2):
        assert rewind(harness, 1)["turn"] == 1
    assert log_of(harness) == log
    assert harness.engine.table.get("s").state.kv.length == kv


def test_a_busy_session_cannot_go_back(plain: Model) -> None:
    """Neither in a turn nor before one that waits; cancelled, it can."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    harness.submit(Prompt(session_id="s", prompt="Go", max_new_tokens=900, ignore_eos=True))
    harness.steps(3)
    answer = harness.last(harness.submit(Rewind(session_id="s", to_turn=0)))
    assert code(answer) == "turn_gap"
    assert "cancel it or wait" in answer["error"]["message"]
    harness.ask(Cancel(session_id="s"))
    assert rewind(harness, 0)["turn"] == 0


def test_a_session_that_is_being_opened_cannot_be_forked() -> None:
    """There is no history yet that could be copied."""
    harness = Harness(llava())
    harness.pictures["slow"] = noise(1)
    opening = harness.submit(Open(session_id="s", images=(Image(url="slow"),)), opens=True)
    for command in (
        Fork(session_id="s", new_session_id="f"),
        Rewind(session_id="s", to_turn=0),
    ):
        assert code(harness.last(harness.submit(command))) == "turn_gap"
    harness.run()
    assert "error" not in harness.last(opening)
    assert fork(harness, "f")["turn"] == 0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda name, turn: Fork(session_id=name, new_session_id="f", at_turn=turn), "at_turn"),
        (lambda name, turn: Rewind(session_id=name, to_turn=turn), "to_turn"),
    ],
)
def test_turns_and_sessions_that_there_are_not(
    plain: Model, make: Callable[[str, int], Fork | Rewind], field: str
) -> None:
    """A turn that was never taken is a gap; a session tells what became of it; nothing is opened."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    answer = harness.ask(make("s", 2))
    assert (code(answer), answer["error"]["field"]) == ("turn_gap", field)
    assert code(harness.ask(make("never", 0))) == "session_not_found"
    harness.open("closed")
    harness.close("closed")
    assert code(harness.ask(make("closed", 0))) == "session_closed"
    harness.clock.now += 61
    assert code(harness.ask(make("s", 0))) == "session_expired"
    assert len(harness.engine.table) == 0


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


@pytest.mark.parametrize("leave", ["to_host", "to_record"])
def test_a_session_that_was_evicted_can_be_forked_and_rewound(model: Model, leave: str) -> None:
    """What is not on the device is not copied, and what is in host memory is cut back there."""
    harness = opened(model)
    for question in QUESTIONS[:2]:
        say(harness, "s", question)
    getattr(harness.engine.table.get("s").state, leave)()
    assert cached(fork(harness, "f")) == 0
    rewind(harness, 1)
    for name in ("s", "f"):
        say(harness, name, QUESTIONS[2])
        check(harness, name)


def test_a_history_is_kept_once(plain: Model) -> None:
    """Every turn holds what it added, not the conversation up to it."""
    harness = opened(plain)
    for question in QUESTIONS:
        say(harness, "s", question)
    context, turns = harness.engine.table.get("s").state, harness.engine.table.get("s").turns
    deltas = [context.opening, *(turn.delta for turn in turns)]
    assert sum(len(delta.ids) for delta in deltas) <= len(context.log) + 1
    assert sum(len(delta.rendered) for delta in deltas) == len(context.dialogue.rendered)


@pytest.mark.parametrize("seed", range(3))
def test_no_sequence_of_forks_and_rewinds_makes_a_reply_inexact(model: Model, seed: int) -> None:
    """Whatever is copied, forgotten and evicted in whatever order."""
    harness, chance = opened(model, maxNumSequence=4), random.Random(seed)
    names = ["s"]
    for number in range(16):
        name = chance.choice(names)
        turns = len(harness.engine.table.get(name).turns)
        action = chance.choice(["say", "say", "fork", "rewind", "evict"])
        if action == "say":
            say(harness, name, QUESTIONS[number % 3])
            check(harness, name)
        elif action == "fork" and len(names) < 4:
            names.append(f"f{number}")
            fork(harness, names[-1], name, at_turn=chance.randint(0, turns))
        elif action == "rewind":
            rewind(harness, chance.randint(0, turns), name)
        elif action == "evict":
            harness.engine.table.evict_idle()
