"""Replies with drafts are those without, whatever the drafts say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, llama
from ts_stateful.language.conversation.drafts import Drafts, Match, TokenHistory
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Cancel, Prompt
from ts_stateful.protocol.response_format import Regex

QUESTIONS = ("What color is the circle?", "And the square?")
NEW_TOKENS = 24
PATTERN = "([a-z ]{3}, )*"
FAMILIES = sorted(name for name, make in MODELS.items() if not make().forward.layout.recurrent)


class Oracle:
    """Knows how replies go on; each draft is right for some tokens, and wrong then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transcripts: list[list[int]] = []
        self.num_right: Iterator[int] = iter(())

        def match(history: TokenHistory, most: int) -> Match:
            return self._match(history, most)

        monkeypatch.setattr(TokenHistory, "match", match)
        monkeypatch.setattr(Drafts, "cut", lambda _, match: match.tokens)

    def _match(self, history: TokenHistory, most: int) -> Match:
        known = memoryview(history._ids).cast("i").tolist()
        for ids in self.transcripts:
            if ids[: len(known)] == known:
                right = next(self.num_right)
                draft = ids[len(known) :][:right]
                return Match(6, [*draft, 5, 6, 7][:most])
        return Match(0, [])


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """Replace what is drafted."""
    return Oracle(monkeypatch)


def talk(model: Model, oracle: Oracle, **settings: Any) -> tuple[Harness, list[dict[str, Any]]]:
    """Ask all questions without drafts, and then with them in another session; return the second answers."""
    answers: list[list[dict[str, Any]]] = []
    for speculation in (False, True):
        harness = Harness(model, {"handler": {"speculation": speculation}})
        harness.open("s", [noise(1)] if model.encoder else [])
        lengths = (0, 1, 4, 2, 9, 0, 30)
        oracle.num_right = iter(lengths * 100)
        replies = []
        for question in QUESTIONS:
            replies.append(harness.prompt("s", question, max_new_tokens=NEW_TOKENS, **settings))
            oracle.transcripts.append(list(harness.engine.table.get("s").state.log))
        answers.append(replies)
    plain, drafted = answers
    for one, other in zip(plain, drafted, strict=True):
        assert "error" not in one
        same = ("text", "finish_reason", "usage")
        assert [one[key] for key in same] == [other[key] for key in same]
        assert _ids(one) == _ids(other)
    drafter = harness.kind.decoding.drafter
    assert 0 < drafter.num_accepted < drafter.num_drafted
    return harness, drafted


def _ids(answer: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """Return the ids of the tokens with log-probabilities, and of the likeliest ones beside each."""
    return [
        (token["id"], [other["id"] for other in token["top_logprobs"]])
        for token in answer.get("logprobs") or ()
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_exact(name: str, oracle: Oracle) -> None:
    """The replies are those of stock `generate` on the whole transcript."""
    model = MODELS[name]()
    harness, _ = talk(model, oracle)
    reference_reply(model, harness, "s", NEW_TOKENS)
    harness.engine.check_integrity()


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.9, "top_p": 0.95, "seed": 7},
        {"repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"logprobs": True, "top_logprobs": 3},
        {"ignore_eos": True},
        {"stop": ["e"]},
        {"response_format": Regex(PATTERN)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_a_request_hold(settings: dict[str, Any], oracle: Oracle) -> None:
    """Tokens are drawn, penalised, limited and reported as without drafts."""
    talk(llama(), oracle, **settings)


def test_drafts_save_steps(oracle: Oracle) -> None:
    """A reply that is foreseen takes few steps."""
    model = llama()
    talk(model, oracle)
    harness = Harness(model)
    harness.open("s")
    oracle.num_right = iter([30] * 100)
    steps = harness.engine.stats().steps_done
    answer = harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS)
    steps = harness.engine.stats().steps_done - steps
    assert answer["usage"]["completion_tokens"] > 2 * steps


def test_a_cancelled_turn_goes_on_exactly(oracle: Oracle) -> None:
    """States of a draft that was wrong are not a part of the session."""
    model = llama()
    talk(model, oracle)
    harness = Harness(model)
    harness.open("s")
    oracle.num_right = iter([1] * 100)
    request = harness.submit(Prompt(session_id="s", prompt=QUESTIONS[0], max_new_tokens=NEW_TOKENS))
    harness.steps(6)
    assert harness.ask(Cancel(session_id="s"))["cancelled"]
    assert harness.last(request)["finish_reason"] == "cancelled"
    harness.prompt("s", QUESTIONS[1], max_new_tokens=NEW_TOKENS)
    reference_reply(model, harness, "s", NEW_TOKENS)
