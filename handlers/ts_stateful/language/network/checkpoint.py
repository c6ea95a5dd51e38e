"""Checkpoints: the weights, tokenizer and processor of a folder or hub id."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from ts_stateful.config.check import check_checkpoint
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.config.weights import HOW_TO_CONVERT
from ts_stateful.language.encoders.processor import load_processor, load_tokenizer
from ts_stateful.language.kernels.cpu.weight_memory import align_weights
from ts_stateful.language.network.model_support import check_config
from ts_stateful.language.parallel.split import split_options

__all__ = ["choose_dtype", "has_bfloat16", "hears", "read_checkpoint"]

logger = logging.getLogger(__name__)

_EXHAUSTED = ("allocate memory", "out of memory", "start new thread")  # limits of the process

# transformers 5.24.0 reads this in every pass of Llama 4, whose text half lacks it.
if not hasattr(MoeCausalLMOutputWithPast, "image_outputs"):
    MoeCausalLMOutputWithPast.image_outputs = None


class Checkpoint(NamedTuple):
    """A network with its processor, or the tokenizer where it serves text alone, and the method by which it is quantised."""

    network: PreTrainedModel
    owner: Any
    quantization: str | None


def read_checkpoint(
    name: str, settings: HandlerConfig, model_dir: Path, device: torch.device
) -> Checkpoint:
    """Read the network, on the CPU, and what belongs to it. One that is split is on the rank's device.

    `name` is a folder or hub id; a chat template's file is in `model_dir`.

    Raises:
        ConfigError: something is missing, damaged or refused.
    """
    if Path(name).is_dir():
        _check(Path(name), has_template=settings.chat_template is not None)
    options = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    try:
        config = _speechless(AutoConfig.from_pretrained(name, **options))
        check_config(config, name)
        auto = _auto_class(config)
        split = split_options(config, auto, settings.tensor_parallel)
        dtype = choose_dtype(
            settings.dtype,
            device,
            config.get_text_config(decoder=True).dtype or config.dtype,
            bfloat16=has_bfloat16(torch.cpu.get_capabilities()),
        )
        network = _read_weights(name, auto, config=config, dtype=dtype, **split, **options)
        if device.type == "cpu" and not split:
            align_weights(network)
        if hears(config) or (_sees(config) and settings.vision):
            owner = load_processor(name, config, **options)
        else:
            owner = load_tokenizer(name, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ConfigError(
            f"cannot load handler.model {settings.model!r}: {_first_paragraph(error)}"
        ) from error
    if settings.chat_template is not None:
        _set_template(owner, settings.chat_template, model_dir)
    if settings.response_template is not None:
        getattr(owner, "tokenizer", owner).response_template = dict(settings.response_template)
    return Checkpoint(network, owner, _quantization(config))


def _speechless(config: Any) -> Any:
    """Return the configuration of the part that reads and writes text, of a model that also speaks (Qwen-Omni)."""
    return getattr(config, "thinker_config", None) or config


def _sees(config: Any) -> bool:
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def hears(config: Any) -> bool:
    """Return True for the configuration of a model that takes audio and no images."""
    return not _sees(config) and getattr(config, "audio_config", None) is not None


def _auto_class(config: Any) -> Any:
    if _sees(config):
        return AutoModelForImageTextToText
    if not hears(config):
        return AutoModelForCausalLM
    for auto, mapping in (
        (AutoModelForMultimodalLM, MODEL_FOR_MULTIMODAL_LM_MAPPING),
        (AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING),
    ):
        if type(config) in mapping:
            return auto
    raise ValueError(f"transformers has no class for audio of {config.model_type}")


def _quantization(config: Any) -> str | None:
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings["quant_method"] if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method))


def _check(folder: Path, *, has_template: bool) -> None:
    for finding in check_checkpoint(folder, has_template=has_template):
        if finding.severity == "error":
            raise ConfigError(finding.reason)
        logger.warning("%s", finding.reason)


def _read_weights(name: str, auto: Any, **options: Any) -> PreTrainedModel:
    """Read safetensors. A pickle can run code, and a pull request on the hub is not the revision that was configured."""
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
    try:
        network, found = auto.from_pretrained(
            name, use_safetensors=True, output_loading_info=True, **options
        )
    except OSError as error:
        if Path(name).is_dir():
            raise
        raise ConfigError(
            f"cannot load the weights of handler.model {name!r} from the hub: {error} Only safetensors are read;"
            f" {HOW_TO_CONVERT}"
        ) from error
    except (SafetensorError, RuntimeError, MemoryError) as error:
        what = "its weights are damaged, or are not those of its config.json"
        if isinstance(error, MemoryError) or any(text in str(error) for text in _EXHAUSTED):
            what = "it needs more memory, or threads, than this process may have"
        raise ConfigError(f"{what}: {_first_paragraph(error)}") from error
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"it lacks {len(missing)} weights of {type(network).__name__}, {missing[0]} for instance; choose a checkpoint that"
            " generates text"
        )
    return network


def _set_template(owner: Any, template: str, model_dir: Path) -> None:
    """Give an owner the template of the configuration, a text or the name of a file."""
    if template.endswith(".jinja"):
        try:
            template = (model_dir / template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"handler.chatTemplate: {error}; pack the file with `ts-stateful pack --files FOLDER`"
            ) from None
    owner.chat_template = template
    try:
        owner.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"handler.chatTemplate: line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError:
        pass  # it may want other messages


def _first_paragraph(error: BaseException) -> str:
    """Return the beginning of a message, in one line; the library explains at length, and lists its classes."""
    return " ".join(str(error).split("\n\n")[0].split())[:600]


def choose_dtype(
    wanted: Literal["auto", "float32", "bfloat16", "float16"],
    device: torch.device,
    stored: torch.dtype | str | None,
    *,
    bfloat16: bool,
) -> torch.dtype:
    """Return the dtype of weights and states on `device`.

    `stored` is the checkpoint's dtype. `bfloat16` is True if the processor computes with that in hardware. With "auto", a GPU
    gets bfloat16. A CPU gets float32, which holds every checkpoint exactly, unless both the processor and the checkpoint have
    bfloat16. Then half as many bytes are read for every token, and no weight is rounded.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    if device.type != "cpu" or (bfloat16 and stored in (torch.bfloat16, "bfloat16")):
        return torch.bfloat16
    return torch.float32


def has_bfloat16(capabilities: Mapping[str, Any]) -> bool:
    """Return True if a CPU of these capabilities (`torch.cpu.get_capabilities()`) multiplies bfloat16 in hardware.

    Without that, torch converts numbers back and forth, and is slower than with float32.
    """
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
