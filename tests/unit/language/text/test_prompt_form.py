"""The text that a processor writes into a prompt itself, written and removed."""

from __future__ import annotations

import pytest

from ts_stateful.language.text.prompt_form import NO_FORM, PromptForm

FORM = PromptForm("<bos>", "\n")


@pytest.mark.parametrize(
    ("rendered", "written"),
    [
        ("Hello", "<bos>Hello\n"),
        ("<image>Hello\n", "<image><bos>Hello\n\n"),
        ("<image>a<image>\n\nb", "<image>a<image><bos>\n\nb\n"),
    ],
)
def test_a_form_is_written_and_removed(rendered: str, written: str) -> None:
    """BOS after the last image, and one line feed more at the end."""
    end = rendered.rfind("<image>")
    assert FORM.write(rendered, end + len("<image>") if end >= 0 else 0) == written
    assert FORM.remove(written) == rendered


def test_only_places_are_words() -> None:
    """Tokens that stand for a part of an image, in models whose processors write a form."""
    assert FORM.is_word("<loc0012>")
    assert FORM.is_word("<seg127>")
    assert not any(map(FORM.is_word, ("<bos>", "<image>", "<loc12>", "x<loc0012>")))
    assert not NO_FORM.is_word("<loc0012>")
    assert NO_FORM.write("Hello", 0) == "Hello"
