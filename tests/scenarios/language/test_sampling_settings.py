"""Settings of a request that change its logits, its end and what is said of its tokens, beside stock code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import LogitsProcessor, LogitsProcessorList

from tests.support.harness import Harness, stock_reply
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.penalties import Penalties
from ts_stateful.language.network.row_penalties import NO_PENALTIES
from ts_stateful.protocol.requests import Prompt

NEW_TOKENS = 24
QUESTIONS = ("What color is the circle?", "And the square?")
BIAS = {token: -30.0 if token % 2 else 1.5 for token in range(300, 420)}


class PresenceAndFrequency(LogitsProcessor):  # type: ignore[misc]  # the library is untyped
    """OpenAI's formula, which transformers lacks, written down plainly."""

    def __init__(self, num_prompt: int, presence: float, frequency: float) -> None:
        self._num_prompt, self._presence, self._frequency = num_prompt, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        reply = input_ids[0, self._num_prompt :].tolist()
        changed = scores.clone()
        for token in set(reply):
            changed[0, token] -= self._presence + self._frequency * reply.count(token)
        return changed


def expected(model: Model, prompt: list[int], settings: Mapping[str, Any]) -> list[int]:
    """The ids that stock `generate` chooses with the same settings."""
    stock: dict[str, Any] = {}
    if "repetition_penalty" in settings:
        stock["repetition_penalty"] = settings["repetition_penalty"]
    if "logit_bias" in settings:
        stock["sequence_bias"] = [[[token], bias] for token, bias in settings["logit_bias"].items()]
    presence, frequency = (settings.get(f"{name}_penalty", 0) for name in ("presence", "frequency"))
    if presence or frequency:
        ours = PresenceAndFrequency(len(prompt), presence, frequency)
        stock["logits_processor"] = LogitsProcessorList([ours])
    ids = stock_reply(model, prompt, NEW_TOKENS, **stock)
    return [token for token in ids if token not in model.eos_ids]


def check_last_turn(harness: Harness, name: str, settings: Mapping[str, Any]) -> list[int]:
    """Assert that the last turn is what stock code makes of it; return its ids."""
    session = harness.engine.table.get(name)
    log, num_prompt = session.state.log, session.state.turns[-1].usage.prompt_tokens
    assert log[num_prompt:] == expected(harness.model, log[:num_prompt], settings)
    return log[num_prompt:]


SETTINGS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    "bias": {"logit_bias": BIAS},
    "all": {
        "repetition_penalty": 0.7,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.9,
        "logit_bias": {301: 5.0, 302: -5.0},
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_reply_is_what_generate_makes_of_the_same_settings(settings: dict[str, Any]) -> None:
    """Turn after turn, and it is another reply than without them."""
    harness = Harness(llama())
    harness.open("s")
    harness.open("plain")
    for question in QUESTIONS:
        harness.prompt("s", question, max_new_tokens=NEW_TOKENS, **settings)
        harness.prompt("plain", question, max_new_tokens=NEW_TOKENS)
        ids = check_last_turn(harness, "s", settings)
        assert ids != check_last_turn(harness, "plain", {})


def test_of_no_share_of_the_tokens_the_likeliest_is_left() -> None:
    """At any temperature; the seed does not matter."""
    harness = Harness(llama())
    harness.open("s")
    harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS, temperature=1.5, top_p=0)
    check_last_turn(harness, "s", {})


def test_each_row_of_a_step_has_its_own_settings() -> None:
    """Sessions with all kinds of settings in one step, and one with none."""
    harness = Harness(llama())
    rows = {**SETTINGS, "none": {}}
    for name in rows:
        harness.open(name)
    for name, settings in rows.items():
        prompt = Prompt(session_id=name, prompt=QUESTIONS[0], max_new_tokens=NEW_TOKENS, **settings)
        harness.submit(prompt)
    harness.run()
    for name, settings in rows.items():
        check_last_turn(harness, name, settings)


def test_a_request_overrides_the_checkpoint() -> None:
    """Its generation_config.json has a repetition penalty; 1 switches it off."""
    model = llama()
    before = model.penalties._repetition
    try:
        model.penalties._repetition = 1.7
        harness = Harness(model)
        harness.open("s")
        harness.open("off")
        harness.prompt("s", QUESTIONS[0], max_new_tokens=NEW_TOKENS)
        harness.prompt("off", QUESTIONS[0], max_new_tokens=NEW_TOKENS, repetition_penalty=1)
        check_last_turn(harness, "s", {"repetition_penalty": 1.7})
        check_last_turn(harness, "off", {})
    finally:
        model.penalties._repetition = before


@pytest.mark.parametrize("includes", [False, True])
def test_a_stop_token_ends_the_reply(includes: bool) -> None:
    """It is part of the reply only if that is asked for, and part of the history only then."""
    harness = Harness(llama())
    harness.open("whole")
    harness.prompt("whole", QUESTIONS[0], max_new_tokens=8, ignore_eos=True)
    session = harness.engine.table.get("whole")
    prompt = session.state.turns[0].usage.prompt_tokens
    reply = session.state.log[prompt:]
    stop = next(index for index in range(2, 8) if reply[index] not in reply[:index])
    harness.open("s")
    answer = harness.prompt(
        "s",
        QUESTIONS[0],
        max_new_tokens=8,
        ignore_eos=True,
        stop_token_ids=(0, reply[stop]),
        include_stop_str_in_output=includes,
    )
    assert answer["finish_reason"] == "stop"
    assert harness.engine.table.get("s").state.log[prompt:] == reply[: stop + includes]
    assert answer["usage"]["completion_tokens"] == stop + includes


def scores(model: Model, ids: list[int], start: int) -> torch.Tensor:
    """The log-probabilities in the place of every id after the first `start`, by one stock pass over all."""
    with torch.inference_mode():
        logits: torch.Tensor = model.network(torch.tensor([ids])).logits[0].float()
    return logits.log_softmax(-1)[start - 1 : -1]


@pytest.mark.parametrize("settings", [{}, SETTINGS["all"], {"temperature": 1.5, "seed": 4}])
def test_logprobs_are_those_of_the_model(settings: dict[str, Any]) -> None:
    """Of its own logits, whatever the settings change; the likeliest tokens are in order, and the text adds up."""
    model = llama()
    harness = Harness(model)
    harness.open("s")
    answer = harness.prompt(
        "s",
        "Tell me a story, äöü 🙂, please.",
        max_new_tokens=NEW_TOKENS,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        **settings,
    )
    session = harness.engine.table.get("s")
    prompt = session.state.turns[0].usage.prompt_tokens
    tokens = answer["logprobs"]
    log = session.state.log
    assert [token["id"] for token in tokens] == log[prompt:]
    for token, row in zip(tokens, scores(model, log, prompt), strict=True):
        assert math.isclose(token["logprob"], float(row[token["id"]]), abs_tol=1e-4)
        best = row.topk(3)
        assert [one["id"] for one in token["top_logprobs"]] == best.indices.tolist()
        found = torch.tensor([one["logprob"] for one in token["top_logprobs"]])
        assert torch.allclose(found, best.values, atol=1e-4)
    added = model.tokenizer.added_tokens_decoder
    shown = [token for token in tokens if token["id"] not in added]
    whole = b"".join(bytes(token["bytes"]) for token in shown)
    assert whole.decode("utf-8", "replace") == answer["text"]


@pytest.mark.parametrize("stop", [(), ("s",)])
def test_streamed_logprobs_are_those_of_the_whole(stop: tuple[str, ...]) -> None:
    """Piece by piece, each token once, with those of the text that a stop string took back left out."""
    harness = Harness(llama())
    replies = []
    for name, stream in (("whole", False), ("stream", True)):
        harness.open(name)
        request = harness.submit(
            Prompt(
                session_id=name,
                prompt=QUESTIONS[0],
                max_new_tokens=NEW_TOKENS,
                ignore_eos=True,
                logprobs=True,
                stop=stop,
                stream=stream,
            )
        )
        harness.run()
        documents = harness.documents(request)
        replies.append([token for one in documents for token in one.get("logprobs") or ()])
        assert all(one.get("logprobs") != [] for one in documents if one["text"])
    assert replies[0] == replies[1] != []
    text = harness.engine.table.get("whole").state.turns[0].text
    assert replies[0][-1]["text_offset"] <= len(text)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (1, 10**6)}, "stop_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(settings: dict[str, Any], field: str) -> None:
    """Before the turn begins; the session stays as it is."""
    harness = Harness(llama())
    harness.open("s")
    error = harness.prompt("s", QUESTIONS[0], **settings)["error"]
    assert (error["code"], error["field"]) == ("invalid_request", field)
    assert "1000000" in error["message"]
    assert harness.prompt("s", QUESTIONS[0], max_new_tokens=2)["turn"] == 1


def test_a_setting_that_fails_costs_its_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns beside it get the replies that they get alone."""
    harness = Harness(llama())
    call = Penalties.__call__

    def fail(penalties: Penalties, logits: Any, contexts: Any, rows: Any) -> torch.Tensor:
        if any(row is not NO_PENALTIES for row in rows):
            raise IndexError("secret text of a library")
        return call(penalties, logits, contexts, rows)

    monkeypatch.setattr(Penalties, "__call__", fail)
    for name in ("good", "bad"):
        harness.open(name)
    prompt = Prompt(session_id="good", prompt=QUESTIONS[0], max_new_tokens=NEW_TOKENS)
    good = harness.submit(prompt)
    bad = harness.submit(structs.replace(prompt, session_id="bad", presence_penalty=1.0))
    harness.run()
    assert harness.last(bad)["error"]["code"] == "internal"
    assert harness.last(good)["turn"] == 1
    check_last_turn(harness, "good", {})
