"""Images of PaliGemma, whose processor writes a part of each prompt itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL.Image
from transformers import PreTrainedModel

from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.vision import Vision
from ts_stateful.language.text.prompt_form import PromptForm

__all__ = ["PrefixVision"]


class PrefixVision(Vision):
    """The vision part of a model whose prompts have a form."""

    def __init__(self, network: PreTrainedModel, processor: Any) -> None:
        super().__init__(network, processor)
        self.form = PromptForm(processor.tokenizer.bos_token, "\n")

    def prepare(self, decoded: PIL.Image.Image, key: str = "") -> MediaInput:
        """See `Encoder`."""
        image = super().prepare(decoded, key)
        image.ids = [token for token in image.ids if token == self.token_id]
        return image

    def process(self, text: str, decoded: Sequence[PIL.Image.Image]) -> dict[str, Any]:
        """See `Encoder`; the processor writes the form again."""
        made = super().process(self.form.remove(text), decoded)
        made.pop("labels", None)  # for training
        return made
