"""Texts that a reply continues without a chat template."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness, stock_reply
from tests.support.tiny import MODELS, llava
from ts_stateful.protocol.chat import RawPrompt


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_continuation_is_that_of_stock_generate(name: str) -> None:
    """The ids are the tokenizer's own, also beside a session that begins alike."""
    model = MODELS[name]()
    harness = Harness(model)
    harness.open("other")
    harness.prompt("other", "The circle is", max_new_tokens=4)
    text = "The circle is"
    answer = harness.ask(
        RawPrompt(session_id="s", prompt=text, max_new_tokens=8, ignore_eos=True),
        creates_session=True,
    )
    ids = model.tokenizer(text).input_ids
    assert answer["usage"]["prompt_tokens"] == len(ids)
    stock = stock_reply(model, ids, 8, eos_token_id=None)
    assert answer["text"] == model.tokenizer.decode(stock, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["", "before <image> after"])
def test_a_text_that_no_model_can_continue_is_refused(text: str) -> None:
    """It names the field."""
    model = llava()
    harness = Harness(model)
    if text == "" and model.tokenizer("").input_ids:
        pytest.skip("a beginning of text is something to continue")
    answer = harness.ask(
        RawPrompt(session_id="s", prompt=text, max_new_tokens=8), creates_session=True
    )
    assert answer["error"]["field"] == "prompt"
