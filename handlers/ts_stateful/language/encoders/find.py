"""The choice of what reads the images and clips of a model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import PIL.Image
from transformers import PreTrainedModel

from ts_stateful.config.check.checkpoint import HEARS_TOO
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.encoders.beside import VisionBeside
from ts_stateful.language.encoders.encoder import Encoder, MediaInput, Tower
from ts_stateful.language.encoders.hearing import Hearing
from ts_stateful.language.encoders.vision import PrefixVision, Vision
from ts_stateful.media.decoder.frames import Samples
from ts_stateful.media.load import MediaFile

__all__ = ["Senses", "find_encoder"]

_Decoded = PIL.Image.Image | Samples


class Senses(Encoder[_Decoded]):
    """The parts of a model that read images and clips. An image or clip is of the kind whose token is among its ids."""

    def __init__(self, vision: Vision, hearing: Hearing) -> None:
        super().__init__()
        self._vision, self._hearing = vision, hearing

    @property
    def towers(self) -> tuple[Tower[Any], ...]:
        """See `Encoder`."""
        return self._vision, self._hearing

    def decode(self, file: MediaFile) -> _Decoded:
        """See `Encoder`."""
        return self._hearing.decode(file) if file.is_audio else self._vision.decode(file)

    def key(self, decoded: _Decoded, *salts: str) -> str:
        """See `Encoder`."""
        return self._reader(decoded).key(decoded, *salts)

    def prepare(self, decoded: _Decoded, key: str = "") -> MediaInput:
        """See `Encoder`."""
        return self._reader(decoded).prepare(decoded, key)

    def process(self, text: str, decoded: Sequence[_Decoded]) -> dict[str, Any]:
        """See `Encoder`."""
        pictures = [each for each in decoded if isinstance(each, PIL.Image.Image)]
        clips = [each for each in decoded if not isinstance(each, PIL.Image.Image)]
        if not clips:
            return self._vision.process(text, pictures)
        return self._hearing.process(text, clips, pictures)

    def samples(self) -> list[list[_Decoded]]:
        """See `Encoder`. Pictures and clips take turns."""
        both = zip(self._vision.samples(), self._hearing.samples(), strict=True)
        return [[pictures[0], *clips[:2], *pictures[1:2]] for pictures, clips in both]

    def _reader(self, decoded: _Decoded) -> Tower[Any]:
        return self._vision if isinstance(decoded, PIL.Image.Image) else self._hearing


logger = logging.getLogger(__name__)


def find_encoder(
    network: PreTrainedModel, processor: Any, image_tiling: str | None, *, sees: bool
) -> Encoder[Any] | None:
    """Return the encoder of a model that `sees`, or else hears; None if its processor is only a tokenizer.

    `image_tiling` is that of the configuration.

    Raises:
        ConfigError: the model does not accept what it would return.
    """
    if getattr(processor, "tokenizer", None) is None:
        return None
    if not sees:
        return Hearing(network, processor)
    if getattr(network.config.get_text_config(decoder=True), "cross_attention_layers", None):
        return VisionBeside(network, processor)
    if network.config.model_type == "paligemma":
        return PrefixVision(network, processor)
    vision = Vision(network, processor, image_tiling)
    if network.config.model_type not in HEARS_TOO:
        return vision
    try:
        return Senses(vision, Hearing(network, processor))
    except ConfigError as error:
        logger.warning("its images are served, without audio: %s", error)
        return vision
