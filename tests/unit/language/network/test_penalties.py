"""A checkpoint's generation settings are applied as by stock `generate`, or named in the log."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tests.support.harness import Harness, reference_reply
from tests.support.tiny import chatml
from tests.support.tiny.small import SMALL
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.network.load import Model, build_model
from ts_stateful.language.network.penalties import Penalties
from ts_stateful.protocol.requests import Prompt

NEW_TOKENS = 24


def _model(**settings: Any) -> Model:
    torch.manual_seed(1)
    network = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    for key, value in settings.items():
        setattr(network.generation_config, key, value)
    return build_model("llama", network, chatml())


def _replies(model: Model) -> list[str]:
    harness = Harness(model)
    harness.open("s")
    harness.open("beside")
    replies = []
    for question in ("What color is the circle?", "And the square?"):
        replies.append(harness.prompt("s", question, max_new_tokens=NEW_TOKENS)["text"])
        reference_reply(model, harness, "s", NEW_TOKENS)
    return replies


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": list(range(300, 420))},
        {"bad_words_ids": [[token] for token in range(300, 420)]},
        {"sequence_bias": [[[token], -9.0] for token in range(300, 420)]},
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 2, "suppress_tokens": [301]},
    ],
    ids="+".join,
)
def test_a_reply_is_what_generate_makes_of_the_same_settings(settings: dict[str, Any]) -> None:
    """Turn after turn, and it is another reply than without them."""
    assert _replies(_model(**settings)) != _replies(_model())


def test_a_model_that_asks_for_nothing_gets_its_logits_as_they_are() -> None:
    """No copy is made of them."""
    penalties = Penalties(GenerationConfig(repetition_penalty=1.0, num_beams=1), [2], 512, "model")
    logits = torch.randn(2, 8)
    rows = [penalties.row(Prompt(prompt=""), 1)] * 2
    assert penalties(logits, [[1], [2]], rows) is logits


def test_rows_are_changed_by_their_own_context_alone() -> None:
    """A row is what it would be alone."""
    penalties = Penalties(GenerationConfig(repetition_penalty=2.0), [2], 512, "model")
    rows = [penalties.row(Prompt(prompt=""), 1) for _ in range(2)]
    changed = penalties(torch.ones(2, 4), [[0, 0, 1], [3]], rows)
    assert changed.tolist() == [[0.5, 0.5, 1.0, 1.0], [1.0, 1.0, 1.0, 0.5]]


def test_what_is_not_done_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A setting that would change replies of `generate` is logged when the model is loaded."""
    settings = GenerationConfig(num_beams=4, min_new_tokens=0, cache_implementation="quantized")
    settings.update(max_time=0.5, stop_strings=["!"], token_healing=False)
    Penalties(settings, [2], 512, "model")
    named = ("num_beams", "cache_implementation", "max_time", "stop_strings")
    assert all(f"sets {key}, which is not supported" in caplog.text for key in named)
    assert len(caplog.records) == len(named)
    caplog.clear()
    Penalties(GenerationConfig(cache_implementation="static"), [2], 512, "model")
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bad_words_ids": []}, "`bad_words_ids` has to be a non-empty list"),
        ({"bad_words_ids": [[512]]}, "vocabulary size is 512"),
        ({"sequence_bias": [[[512], 1.0]]}, "vocabulary size is 512"),
        ({"repetition_penalty": -1.0}, "repetition_penalty has to be above 0, not -1.0"),
    ],
)
def test_what_generate_refuses_is_refused(settings: dict[str, Any], reason: str) -> None:
    """When the model is loaded: some of it `generate` finds at its first token alone."""
    with pytest.raises(ConfigError, match=rf"^model: generation_config.json: .*{reason}"):
        Penalties(GenerationConfig(**settings), [2], 512, "model")


def test_penalties_follow_a_reply_as_it_grows() -> None:
    """Each step counts what is new; many different ids, and the same one often."""
    penalties = Penalties(GenerationConfig(), [2], 512, "model")
    asked = Prompt(prompt="", repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=1.0)
    vocabulary, prompt = 300, [7, 7, 299]
    row, ids = penalties.row(asked, len(prompt)), list(prompt)
    for step in range(200):
        ids.append(step * 7 % 150)
        changed = penalties(torch.full((1, vocabulary), -1.0), [ids], [row])
        reply = ids[len(prompt) :]
        expected = [
            (-2.0 if token in ids else -1.0)
            - ((1.0 + 0.5 * reply.count(token)) if token in reply else 0.0)
            for token in range(vocabulary)
        ]
        assert changed[0].tolist() == pytest.approx(expected)
