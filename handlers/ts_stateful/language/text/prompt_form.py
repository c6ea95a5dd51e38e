"""The text that a processor writes into a prompt itself."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["NO_FORM", "PromptForm"]

_PLACES = re.compile(r"<(?:loc\d{4}|seg\d{3})>")


class PromptForm(NamedTuple):
    """PaliGemma's: `bos` after the last image, `end` after the text. Other prompts are without one.

    Its models have no chat template. Each message is on a line of its own, and `end` is the line feed before the reply.
    """

    bos: str = ""
    end: str = ""

    def write(self, rendered: str, images_end: int) -> str:
        """Return a prompt whose last image ends at an index, 0 if it has none, as the model reads it."""
        return rendered[:images_end] + self.bos + rendered[images_end:] + self.end

    def remove(self, prompt: str) -> str:
        """Return what `write` got."""
        return prompt.replace(self.bos, "", 1).removesuffix(self.end)

    def is_word(self, token: str) -> bool:
        """Return True for a token of the vocabulary by which texts name places in an image, and which controls nothing."""
        return bool(self.bos) and _PLACES.fullmatch(token) is not None


NO_FORM = PromptForm()
