"""Rules for the folder of a language model: what would stop it from loading, or make it answer badly."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.check.template import check_template
from ts_stateful.config.document import read_json
from ts_stateful.config.weights import (
    INDEX,
    pickled_weights,
    read_shapes,
    weight_files,
    weights_cure,
)

__all__ = ["HEARS_TOO", "REFUSED", "check_checkpoint", "check_weights"]

# Language models that transformers has, by model_type, and why they are not served.
REFUSED = {
    "deepseek_v4": "its layers compress blocks of tokens into one state, so a session cannot go back to a token in between",
    "granite_speech": "its processor needs torchaudio, whose published builds do not load beside a CPU's torch",
}
# Quantised by these methods, weights are read by packages alone.
_PACKED = {"awq": ("gptqmodel",), "gptq": ("gptqmodel", "optimum")}
# Vision towers of other packages, without which a model cannot be made at all.
_TOWERS = {"gemma3n": "timm"}
# Models that see, and whose clips are served, too.
HEARS_TOO = {"qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"}
# Families that publish no chat template: they have one here, or need none.
_TEMPLATED = {"paligemma", "voxtral"}
_KEY = "handler.model"
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_TEMPLATE = "chat_template.jinja"
_TEMPLATE_OWNERS = ("chat_template.json", "processor_config.json", "tokenizer_config.json")
_SETTINGS = (*_TEMPLATE_OWNERS, "generation_config.json", "preprocessor_config.json")
_SEE_FAMILIES = "docs/models.md has the families that are served"
_AGAIN = "download it again; `git lfs pull` does after a clone"


class _Fields(msgspec.Struct):
    """The types of what is read of a `config.json`."""

    model_type: str | None = None
    architectures: list[str] | None = None


def check_checkpoint(folder: Path, *, has_template: bool = False) -> Iterator[Finding]:
    """Find defects of a model's folder; `has_template` if the configuration has a chat template.

    The names of architectures are checked where `transformers` is installed.
    """
    try:
        config = read_json(folder / "config.json", dict[str, Any])
        # Of a model that also speaks, the part that reads and writes text is served.
        if isinstance(thinker := config.get("thinker_config"), dict):
            config = {**thinker, "architectures": []}
        msgspec.convert(config, _Fields)
    except (OSError, ValueError) as reason:
        yield error(_KEY, f"{folder}/config.json cannot be read: {reason}", _AGAIN)
        return
    kind = config.get("model_type")
    if kind in REFUSED:
        yield error(_KEY, f"{folder} is a {kind} model: {REFUSED[kind]}", _SEE_FAMILIES)
    else:
        yield from _check_architecture(config, folder)
        yield from _check_quantization(config, folder)
        yield from _check_tower(config, folder)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        yield error(
            _KEY,
            f"{folder} has no tokenizer (tokenizer.json)",
            "copy the tokenizer's files from the model's repository, or write them there with"
            " `AutoTokenizer.from_pretrained(...).save_pretrained(...)`",
        )
    yield from _check_settings(folder)
    yield from check_weights(folder)
    template = None if has_template else _find_template(folder)
    if template is not None:
        yield from check_template(_KEY, *template)
    elif not (has_template or kind in _TEMPLATED):
        yield warning(
            _KEY,
            f"{folder} has no chat template, so messages are joined without marks of who speaks",
            "set handler.chatTemplate, or ignore this for a model that only completes texts",
        )


def _check_settings(folder: Path) -> Iterator[Finding]:
    """Find damaged files, which libraries refuse without their names. A tokenizer of many megabytes is only skimmed."""
    for name in ("tokenizer.json", *_SETTINGS):
        try:
            if name == "tokenizer.json":
                msgspec.json.decode((folder / name).read_bytes(), type=dict[str, msgspec.Raw])
            else:
                read_json(folder / name, dict[str, Any])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as reason:
            yield error(_KEY, f"{folder / name} cannot be read: {reason}", _AGAIN)


def _check_architecture(config: dict[str, Any], folder: Path) -> Iterator[Finding]:
    try:
        library: Any = import_module("transformers")  # absent on machines that only pack
    except ImportError:
        return
    auto, kind = library.models.auto, config.get("model_type")
    kinds = auto.configuration_auto.CONFIG_MAPPING_NAMES
    served, hears = _served_classes(config, auto.modeling_auto)
    if "auto_map" in config:
        return  # code of its own
    if kind not in kinds:
        yield error(
            _KEY,
            f"{folder}/config.json has the model_type {kind!r}, which transformers {library.__version__} does not have",
            f"{_nearest(str(kind), kinds)}correct it, or install a newer transformers",
        )
    elif not served:
        takes_audio = kind in auto.modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
        what = "which takes audio in a way that is not served"
        what = what if takes_audio else "neither a language model nor a vision-language model"
        yield error(_KEY, f"{folder} is a {kind} model, {what}", _SEE_FAMILIES)
    else:
        yield from _check_class(next(iter(config.get("architectures") or ()), ""), served, library)
        if config.get("audio_config") and not hears and kind not in HEARS_TOO:
            yield warning(
                _KEY,
                f"{folder} is a {kind} model, which takes audio besides images, and is served without audio",
                "ignore this if sessions send none",
            )


def _check_quantization(config: dict[str, Any], folder: Path) -> Iterator[Finding]:
    settings = config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    packages = _PACKED.get(str(method), ())
    if missing := next(filter(_is_missing, packages), None):
        yield error(
            _KEY,
            f"{folder} is quantised by {method}, which needs {missing}, and that is not installed",
            "choose a checkpoint that is quantised by compressed-tensors, FP8 or torchao, or not at all",
        )


def _check_tower(config: dict[str, Any], folder: Path) -> Iterator[Finding]:
    package = _TOWERS.get(str(config.get("model_type")))
    if package is not None and _is_missing(package):
        yield error(
            _KEY,
            f"{folder} is a {config['model_type']} model, whose vision tower needs {package}, and that is not installed",
            "pip install 'torchserve-stateful[vision]'",
        )


def _is_missing(package: str) -> bool:
    """Return True if a package is not installed on a machine that serves; others only pack."""
    return find_spec("transformers") is not None and find_spec(package) is None


def _served_classes(config: dict[str, Any], auto: Any) -> tuple[set[str], bool]:
    """Return the names of the classes that serve a configuration, and True if they hear."""
    kind = config.get("model_type")
    mappings = [
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    ]
    served = {mapping[kind] for mapping in mappings if kind in mapping}
    if served or not config.get("audio_config") or config.get("is_encoder_decoder"):
        return served, False
    hearing = (
        auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    return {mapping[kind] for mapping in hearing if kind in mapping}, True


def _check_class(name: str, served: Collection[str], library: Any) -> Iterator[Finding]:
    # The head of a base model may be tied to its embeddings; else it fails when it is loaded.
    if not name or name in served or name.endswith("Model"):
        return
    classes = " or ".join(sorted(served))
    if name in dir(library):  # without importing its module
        yield error(
            _KEY,
            f"it has the weights of {name}, which does not generate text",
            f"choose a checkpoint of {classes}",
        )
    else:
        yield warning(
            _KEY,
            f"config.json names the architecture {name}, which transformers {library.__version__} does not have",
            f"{_nearest(name, served)}the model is loaded as {classes}",
        )


def check_weights(folder: Path) -> Iterator[Finding]:
    """Find what is missing or damaged of the weights in a model's folder, by the headers of its files."""
    if (pickle := pickled_weights(folder)) is not None:
        yield error(
            _KEY,
            f"{folder} has its weights in {pickle}, and only safetensors are read",
            weights_cure(folder),
        )
        return
    name = INDEX
    try:
        names = weight_files(folder)
        if missing := [name for name in names if not (folder / name).is_file()]:
            yield error(
                _KEY,
                f"{folder} lacks weights: {', '.join(missing[:3])}",
                "download them; `git lfs pull` does after a clone",
            )
            return
        for name in names:
            read_shapes(folder / name)
    except (OSError, ValueError) as reason:
        yield error(_KEY, f"{folder / name} cannot be read: {reason}", _AGAIN)


def _find_template(folder: Path) -> tuple[str, Path | object] | None:
    """Return the place of a folder's chat template, and its file or its value; None if there is none."""
    if (file := folder / _TEMPLATE).is_file():
        return str(file), file
    for name in _TEMPLATE_OWNERS:
        try:
            if value := read_json(folder / name, dict[str, Any]).get("chat_template"):
                return f"chat_template of {folder / name}", value
        except (OSError, ValueError):
            pass  # `_check_settings` reports it
    return None


def _nearest(name: str, names: Collection[str]) -> str:
    found = difflib.get_close_matches(name, names, 1)
    return f"did you mean {found[0]}? " if found else ""
