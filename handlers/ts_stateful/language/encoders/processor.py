"""Processors of vision-language models, also without the packages that many of them need for videos alone."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import transformers
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    ProcessorMixin,
)
from transformers.image_processing_base import ImageProcessingMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available
from transformers.video_processing_utils import VideoProcessorMixin

from ts_stateful.language.encoders.voxtral import load_voxtral

__all__ = ["load_processor", "load_tokenizer"]

_PARTS = {
    "feature_extractor": AutoFeatureExtractor,
    "image_processor": AutoImageProcessor,
    "tokenizer": AutoTokenizer,
}
_NEEDED = (
    "its images need torchvision, which is not installed: pip install 'torchserve-stateful[vision]'"
)
_PIXTRAL = "transformers.models.pixtral"
_SMOLVLM = "transformers.models.smolvlm.processing_smolvlm"


def load_processor(name: str, config: Any, **options: Any) -> Any:
    """Load the processor of a folder or hub id, as `AutoProcessor` does. Without their packages it reads no videos.

    `config` is the model's.

    Raises:
        ImportError: a package is missing that images need, too; the message has its name.
        OSError, ValueError, KeyError: as `AutoProcessor`.
    """
    if config.model_type == "voxtral":
        return load_voxtral(name, config, **options)
    if config.model_type == "smolvlm":
        # It refuses to start without a package that writes the number of a video's frames in words.
        module: Any = importlib.import_module(_SMOLVLM)
        module.num2words = module.num2words or _refuse_videos
    try:
        return AutoProcessor.from_pretrained(name, **options)
    except (ImportError, ValueError) as error:
        if not _misses_torchvision(error):
            raise
    try:
        return _load_for_images(name, config.model_type, options)
    except (ImportError, ValueError) as error:
        raise (ImportError(_NEEDED) if _misses_torchvision(error) else error) from error


def load_tokenizer(name: str, **options: Any) -> Any:
    """Load a tokenizer with its chat template, which may be in a file of the processor.

    Raises:
        OSError, ValueError, KeyError: as `AutoTokenizer`.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, mistral_format=False, **options)
    if tokenizer.chat_template is None:
        settings, _ = ProcessorMixin.get_processor_dict(name, **options)
        tokenizer.chat_template = settings.get("chat_template")
    return tokenizer


def _misses_torchvision(error: Exception) -> bool:
    return not is_torchvision_available() and "torchvision" in str(error).lower()


def _load_for_images(name: str, model_type: str, options: dict[str, Any]) -> Any:
    stock = _find_type(name, model_type, options)
    attributes = stock.get_attributes()
    if not set(attributes) <= {*_PARTS, "video_processor"}:
        raise ImportError(_NEEDED)
    settings, rest = stock.get_processor_dict(name, **options)
    parts = [
        _PARTS[part].from_pretrained(name, **options) if part in _PARTS else _NoVideos()
        for part in attributes
    ]
    without_videos: Any = type(stock.__name__, (_WithoutVideos, stock), {})
    return without_videos.from_args_and_dict(parts, settings, **rest)


def _find_type(name: str, model_type: str, options: dict[str, Any]) -> Any:
    """Return the class that the files of a model name, or else its configuration's."""
    settings, _ = ProcessorMixin.get_processor_dict(name, **options)
    images, _ = ImageProcessingMixin.get_image_processor_dict(name, **options)
    named = settings.get("processor_class") or images.get("processor_class")
    named = named or PROCESSOR_MAPPING_NAMES.get(model_type)
    if named is None:
        raise ImportError(_NEEDED)
    if named == "PixtralProcessor":
        # Its module wants one function of a module for torchvision. The module for Pillow has it, too.
        images_module = f"{_PIXTRAL}.image_processing_pixtral"
        sys.modules.setdefault(
            images_module, importlib.import_module(f"{_PIXTRAL}.image_processing_pil_pixtral")
        )
        return importlib.import_module(f"{_PIXTRAL}.processing_pixtral").PixtralProcessor
    return getattr(transformers, named)


def _refuse_videos(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise ImportError("videos are not served")


class _NoVideos(VideoProcessorMixin):  # type: ignore[misc]  # transformers is not typed
    """The place of a video processor, whose settings some processors read for every chat."""

    num_frames = None
    fps = None
    merge_size = 1

    def preprocess(self, videos: Any, **kwargs: Any) -> Any:
        """Refuse videos.

        Raises:
            ImportError: always.
        """
        _refuse_videos()


class _WithoutVideos:
    """A mixin for stock processors, which check the classes of their parts."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        """Accept `_NoVideos`; the library has no class to compare it with."""
        if isinstance(argument, _NoVideos):
            return _NoVideos
        return super().check_argument_for_proper_class(name, argument)  # type: ignore[misc]
