"""The choice of what reads the images and clips of a model."""

from __future__ import annotations

import logging
from typing import Any

from transformers import PreTrainedModel

from ts_stateful.config.check.checkpoint import HEARS_TOO
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.encoders.beside import VisionBeside
from ts_stateful.language.encoders.encoder import Encoder
from ts_stateful.language.encoders.hearing import Hearing
from ts_stateful.language.encoders.senses import Senses
from ts_stateful.language.encoders.vision import PrefixVision, Vision

__all__ = ["find_encoder"]

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
