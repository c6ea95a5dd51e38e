"""Several replies to one prompt: the prompt is computed once, and each reply is what it would be alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.harness import Harness
from tests.support.pictures import noise
from tests.support.tiny import MODELS, llama
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Chat, RawPrompt, Said
from ts_stateful.protocol.requests import Image

TEXT = "Tell me a story about a turtle who keeps the session, and what color the sky is."


def ask(name: str, seed: int, *, image: bool = False, **fields: Any) -> Chat:
    parts: tuple[str | None, ...] = (None, TEXT) if image else (TEXT,)
    return Chat(
        session_id=name,
        messages=(Said("user", parts),),
        images=(Image(url="picture"),) if image else (),
        max_new_tokens=12,
        temperature=1.0,
        seed=seed,
        **fields,
    )


def alone(model: Model, seed: int, *, image: bool) -> dict[str, Any]:
    harness = Harness(model)
    harness.media["picture"] = noise(1)
    return harness.ask(ask("a", seed, image=image), creates_session=True, ephemeral=True)


@pytest.mark.parametrize("name", ["llama", "llava", "qwen2_vl"])
def test_only_the_first_computes_the_prompt(name: str) -> None:
    """Others copy its states, and compute the last token, whose logits choose their first."""
    model = MODELS[name]()
    image = model.encoder is not None
    expected = [alone(model, seed, image=image)["text"] for seed in (5, 6, 7)]
    assert len(set(expected)) > 1
    harness = Harness(model)
    harness.media["picture"] = noise(1)
    first, *others = (f"r.{index}" for index in range(3))
    for index, request in enumerate((first, *others)):
        harness.submit(
            ask(f"s{index}", 5 + index, image=image),
            request,
            creates_session=True,
            ephemeral=True,
        )
    harness.run()
    answers = [harness.last(request) for request in (first, *others)]
    assert [answer["text"] for answer in answers] == expected
    usages = [answer["usage"] for answer in answers]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, *[usages[0]["prompt_tokens"] - 1] * 2]


def test_one_token_each() -> None:
    """The first ends with the step in which the others would copy from it."""
    harness = Harness(llama())
    for index in range(3):
        command = RawPrompt(session_id=f"s{index}", prompt=TEXT, max_new_tokens=1, ignore_eos=True)
        harness.submit(command, f"r.{index}", creates_session=True, ephemeral=True)
    harness.run()
    answers = [harness.last(f"r.{index}") for index in range(3)]
    assert len({answer["text"] for answer in answers}) == 1
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_the_others_go_on_without_the_first(steps: int) -> None:
    """Its client leaves before, while or after its prompt is computed; nothing waits for ever."""
    harness = Harness(llama())
    for index in range(3):
        harness.submit(
            ask(f"s{index}", 5 + index),
            f"r.{index}",
            creates_session=True,
            ephemeral=True,
        )
    harness.steps(steps)
    harness.engine.drop("r.0")
    harness.engine.tick()
    harness.run()
    for index in (1, 2):
        answer = harness.last(f"r.{index}")
        assert answer["text"] == alone(harness.model, 5 + index, image=False)["text"]
