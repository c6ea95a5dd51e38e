"""Small random-weight models of real `transformers` configurations, with tokenizers trained on the spot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

from tests.support.tiny import (
    beside,
    cutting,
    hearing,
    latent,
    like_llama,
    looking_ahead,
    merging,
    more_text,
    omni,
    own_attention,
    prefix,
    recurrent_text,
    seeing,
    text,
)
from tests.support.tiny.merging import qwen2_vl
from tests.support.tiny.seeing import llava
from tests.support.tiny.small import save
from tests.support.tiny.text import llama
from tests.support.tiny.tokens import CHATML, REWRITING, VICUNA, chatml, tokenizer_of
from ts_stateful.language.network.load import Model

__all__ = [
    "CHATML",
    "MODELS",
    "MORE_MODELS",
    "REWRITING",
    "VICUNA",
    "chatml",
    "llama",
    "llava",
    "qwen2_vl",
    "save",
    "tokenizer_of",
]

_Builder = Callable[[], Model]
_MODULES = (
    *(beside, cutting, hearing, latent, like_llama, looking_ahead, merging, more_text, omni),
    *(own_attention, prefix, recurrent_text, seeing, text),
)
_MOST_TESTED = {
    *("gemma2", "gemma3", "gemma3_vision", "gpt2", "idefics3", "llama", "llava", "mamba2"),
    *("mistral", "phi3", "qwen2", "qwen2_vl", "qwen3", "qwen3_next", "smolvlm"),
}


def _builders(module: ModuleType) -> Iterator[tuple[str, _Builder]]:
    """Yield a module's public functions that make a model of nothing."""
    for name, function in inspect.getmembers(module, inspect.isfunction):
        signature = inspect.signature(function)
        needs = [p for p in signature.parameters.values() if p.default is p.empty]
        is_own = function.__module__ == module.__name__ and not name.startswith("_")
        if is_own and not needs and signature.return_annotation == "Model":
            yield name, function


_ALL = dict(sorted(pair for module in _MODULES for pair in _builders(module)))
MODELS = {name: build for name, build in _ALL.items() if name in _MOST_TESTED}
# Other supported models, each tested in one long conversation.
MORE_MODELS = {name: build for name, build in _ALL.items() if name not in _MOST_TESTED}
