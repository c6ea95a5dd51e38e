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


def test_ids_are_continued_as_they_are() -> None:
    """Where the text of these ids would have others: `Th` and `e` are two tokens here."""
    model = llava()
    tokenizer = model.tokenizer
    ids = [
        token
        for part in ("Th", "e", " circle")
        for token in tokenizer.encode(part, add_special_tokens=False)
    ]
    assert tokenizer(tokenizer.decode(ids), add_special_tokens=False).input_ids != ids
    answer = Harness(model).ask(
        RawPrompt(session_id="s", ids=tuple(ids), max_new_tokens=8, ignore_eos=True),
        creates_session=True,
    )
    assert answer["usage"]["prompt_tokens"] == len(ids)
    stock = stock_reply(model, ids, 8, eos_token_id=None)
    assert answer["text"] == tokenizer.decode(stock, skip_special_tokens=True)


@pytest.mark.parametrize("of", ["vocabulary", "images"])
def test_ids_that_no_text_has_are_refused(of: str) -> None:
    """Those beyond the vocabulary, and those in whose place an image is."""
    model = llava()
    assert model.encoder is not None
    ids = (model.forward.vocab_size,) if of == "vocabulary" else tuple(model.encoder.tokens)
    answer = Harness(model).ask(RawPrompt(session_id="s", ids=ids), creates_session=True)
    assert answer["error"]["field"] == "prompt"


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
