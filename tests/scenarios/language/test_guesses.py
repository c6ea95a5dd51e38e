"""Replies whose tokens the model guesses by weights in 8 bits are those without guesses."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.kernels import language_kernels
from tests.support.pictures import noise
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.language import decoding
from ts_stateful.language import guesses as module
from ts_stateful.language.guesses import Guesses, round_layers
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers
from ts_stateful.language.kernels.decoder_layout import find_decoder
from ts_stateful.language.kv.spans import Rows
from ts_stateful.language.network.forward import Forward
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.response_format import Regex

QUESTIONS = ("What color is the circle?", "And the square?")
NEW_TOKENS = 24
FAMILIES = (
    *("exaone4", "gemma3", "gemma3_vision", "glm4", "granite", "llama", "llava", "mistral"),
    *("olmo2", "phi3", "qwen2", "qwen2_vl", "qwen3", "qwen3_vl"),
)
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def make(name: str, *, is_rounded: bool = True) -> Harness:
    """Return an engine of a small model that guesses."""
    model = {**MODELS, **MORE_MODELS}[name]()
    forward, harness = model.forward, Harness(model)
    decoder = find_decoder(forward.network)
    layers = FusedLayers(decoder, forward.layout, forward.windows, language_kernels())
    layers = layers.rounded() if is_rounded else layers
    runner = harness.kind.decoding.runner
    harness.kind.decoding.drafter.guesses = Guesses(runner, layers, None, (3, 2, 1, 0))
    return harness


def talk(harness: Harness, session: str, **settings: Any) -> list[Any]:
    """Return the replies to all questions."""
    harness.open(session, [noise(1)] if harness.model.encoder else [])
    settings = {"max_new_tokens": NEW_TOKENS, **settings}
    answers = [harness.prompt(session, question, **settings) for question in QUESTIONS]
    assert not any("error" in answer for answer in answers)
    return [(answer["text"], answer["usage"], answer.get("logprobs")) for answer in answers]


def accepted(harness: Harness) -> int:
    harness.engine.check_integrity()
    return harness.kind.decoding.drafter.num_accepted


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_exact(name: str) -> None:
    """The replies are those of stock `generate` on the whole transcript, in fewer steps."""
    harness = make(name)
    talk(harness, "s")
    reference_reply(harness.model, harness, "s", NEW_TOKENS)
    assert accepted(harness) > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.9, "top_p": 0.95, "seed": 7},
        {"repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"logprobs": True, "top_logprobs": 3},
        {"max_new_tokens": 3},
        {"stop": ["e"]},
        {"response_format": Regex("([a-z ]{3}, )*")},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_a_request_hold(settings: dict[str, Any]) -> None:
    """Tokens are drawn, penalised, limited and reported as without guesses."""
    harness = make("llama")
    found = talk(harness, "s", **settings)
    plain = Harness(harness.model, {"handler": {"speculation": False}})
    expected = talk(plain, "s", **settings)
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    for (*_, ours), (*_, theirs) in zip(found, expected, strict=True):
        assert [token["id"] for token in ours or ()] == [token["id"] for token in theirs or ()]
    drafter = harness.kind.decoding.drafter
    assert drafter.num_drafted > 0


def test_drawn_tokens_are_guessed_by_the_same_draws() -> None:
    """Most are right, by the real weights of the layers; estimates of logits exchange tokens that are about as likely."""
    harness = make("llama", is_rounded=False)
    talk(harness, "s", temperature=1.0, seed=3, ignore_eos=True)
    drafter = harness.kind.decoding.drafter
    assert drafter.num_accepted > 0.5 * drafter.num_drafted > 0  # by other draws none is


def test_two_replies_at_once_are_exact() -> None:
    """Both are guessed in one pass."""
    harness, sessions = make("llama"), ("a", "b")
    alone = talk(make("llama"), "s")[0]
    for session in sessions:
        harness.open(session)
    requests = [
        harness.submit(Prompt(session_id=session, prompt=QUESTIONS[0], max_new_tokens=NEW_TOKENS))
        for session in sessions
    ]
    harness.run()
    assert [harness.last(request)["text"] for request in requests] == [alone[0]] * 2
    assert accepted(harness) > 0


@pytest.mark.parametrize("error", [RuntimeError("no"), torch.OutOfMemoryError("no")])
def test_an_error_of_guesses_disturbs_no_reply(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a defect there are no more, and the log has the reason; a lack of memory passes."""

    def broken(_: Rows) -> None:
        raise error

    harness = make("llama")
    expected = talk(harness, "s")
    drafter = harness.kind.decoding.drafter
    monkeypatch.setattr(drafter.guesses, "_layers", broken)
    assert talk(harness, "t") == expected
    ends = type(error) is RuntimeError
    assert ("no more tokens are guessed" in caplog.text) == (drafter.guesses is None) == ends


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> Forward:
    """Return a model that counts as large."""
    monkeypatch.setattr(module, "_LEAST_WEIGHTS", 0)
    forward = MODELS["llama"]().forward
    decoder = find_decoder(forward.network)
    forward.shortcut = FusedLayers(decoder, forward.layout, forward.windows, language_kernels())
    return forward


def with_memory(num_bytes: int, folder: Path) -> ControlGroups:
    """Return the limit of a container."""
    (folder / "memory.max").write_text(str(num_bytes), encoding="utf-8")
    (folder / "own").write_text("0::/\n", encoding="utf-8")
    return ControlGroups(folder, folder / "own")


def test_the_copy_takes_an_eighth_of_the_memory_at_most(
    forward: Forward, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has what it takes, or would take."""
    assert isinstance(forward.shortcut, FusedLayers)
    caplog.set_level(logging.INFO)
    num_weights = forward.shortcut.num_weights
    assert round_layers(forward, with_memory(8 * num_weights - 8, tmp_path)) is None
    assert "weights in 8 bits would take" in caplog.text
    assert round_layers(forward, with_memory(8 * num_weights, tmp_path))
    assert "next tokens are guessed by weights in 8 bits" in caplog.text


@pytest.mark.parametrize("setting", ["speculation", "draftWeights"])
def test_guesses_can_be_turned_off(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy of the weights is made then."""
    asked = list[Forward]()
    monkeypatch.setattr(decoding, "round_layers", asked.append)
    model = MODELS["llama"]()
    Harness(model, {"handler": {setting: False}}).kind.tune()
    assert not asked
    Harness(model).kind.tune()
    assert asked == [model.forward]


def test_a_model_without_fused_layers_guesses_nothing(forward: Forward) -> None:
    """Stock code computes them, or the device is another one."""
    forward.shortcut = None
    assert round_layers(forward) is None


def test_a_small_model_guesses_nothing(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are not what a step takes its time for."""
    assert isinstance(forward.shortcut, FusedLayers)
    monkeypatch.setattr(module, "_LEAST_WEIGHTS", forward.shortcut.num_weights + 1)
    assert round_layers(forward) is None
