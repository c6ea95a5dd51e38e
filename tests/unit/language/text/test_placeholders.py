"""Placeholders of images and clips in rendered text."""

from __future__ import annotations

import re

from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from tests.support.tiny import tokenizer_of
from ts_stateful.language.text.marked_chat import encode_marked
from ts_stateful.language.text.placeholders import Placeholder, Placeholders

_TOKENIZER = tokenizer_of("<image>", "<audio>")
_BOTH = Placeholders(_TOKENIZER, [Placeholder("<image>"), Placeholder("<audio>", "audio")])


def test_the_last_placeholder_is_found() -> None:
    """It is one of any kind; a model without placeholders has none anywhere."""
    assert _BOTH.end_of_last("a <audio> b <image> c") == len("a <audio> b <image>")
    assert _BOTH.end_of_last("a b c") == 0
    assert Placeholders(_TOKENIZER, []).end_of_last("a b c") == 0


def test_a_placeholder_that_a_text_spells_out_is_text() -> None:
    """It carries a mark, here and in the ids, which are those of transformers with and without marks."""
    spelled = mark_control_tokens("b <image> c", re.compile("<image>"))
    assert _BOTH.end_of_last(f"<audio> {spelled}") == len("<audio>")
    for text in ("<audio> b", f"<audio> {spelled}"):
        assert encode_marked(_TOKENIZER, text) == encode_marked_chat(_TOKENIZER, text)


def test_an_expansion_needs_the_placeholder_only_where_there_are_several() -> None:
    """That of Aya Vision has other tokens alone."""
    image = Placeholder("<image>")
    assert Placeholders(_TOKENIZER, [image]).of([7, 8]) == image
    assert _BOTH.of([7, _TOKENIZER.convert_tokens_to_ids("<audio>")]).part == "audio"
