"""A model with its tokenizer and processor, loaded from a folder or a hub id."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ts_stateful.config.given_model import expand_home, resolve_model
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.cpu_kernels.build import cache_folder, is_worthwhile, load_library
from ts_stateful.engine.services import NO_REPORT, LoadReport
from ts_stateful.language.encoders.encoder import Encoder
from ts_stateful.language.encoders.find import find_encoder
from ts_stateful.language.encoders.lean_tower import make_lean
from ts_stateful.language.encoders.vision import PrefixVision
from ts_stateful.language.fingerprint import fingerprint
from ts_stateful.language.kernels.cpu.compact_weights import find_compact
from ts_stateful.language.kernels.cpu.compiled_linear import compile_linears
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers, find_fused
from ts_stateful.language.kernels.cpu.packed_linear import can_pack, pack, pack_towers
from ts_stateful.language.kernels.cpu.weight_memory import use_huge_pages
from ts_stateful.language.kernels.gpu.cuda_graphs import CudaCapturer
from ts_stateful.language.kernels.samples import prompt_seconds
from ts_stateful.language.kernels.select import find_kernels
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.adapters import Adapters, load_adapter
from ts_stateful.language.network.checkpoint import hears, read_checkpoint
from ts_stateful.language.network.count_weights import weights_counted
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.network.model_support import (
    check_network,
    find_window,
    verified_forward,
)
from ts_stateful.language.network.penalties import Penalties
from ts_stateful.language.parallel.group import all_ranks
from ts_stateful.language.text.chat_template import ChatText
from ts_stateful.language.text.placeholders import Placeholder
from ts_stateful.language.text.prompt_form import NO_FORM
from ts_stateful.language.text.reply_parser import find_template
from ts_stateful.language.text.token_bytes import TokenBytes

__all__ = ["Model", "accelerate", "build_model", "load_model", "use_adapters"]

logger = logging.getLogger(__name__)
_TIMED_TOKENS, _TIMES = 128, 2
_MEND = "mend handler.responseTemplate, or response_template in tokenizer_config.json"


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model: `encoder` is None for a text model; `context_tokens` is its window."""

    name: str
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    text: ChatText
    encoder: Encoder[Any] | None
    context_tokens: int
    eos_ids: frozenset[int]
    penalties: Penalties
    token_bytes: TokenBytes
    forward: Forward
    fingerprint: Mapping[str, str]  # see `fingerprint`
    quantization: str | None = None  # the method of its checkpoint

    @property
    def num_parameters(self) -> int:
        """The number of weights."""
        return int(self.network.num_parameters())

    @property
    def media_tokens(self) -> frozenset[int]:
        """The ids of tokens that stand for parts of images and clips."""
        return self.encoder.tokens if self.encoder else frozenset()

    @property
    def adapters(self) -> Adapters:
        """The adapters that sessions can choose."""
        return self.forward.adapters

    def fingerprint_with(self, adapter: str | None) -> dict[str, str]:
        """Return the fingerprint of sessions with this adapter; an adapter that is not here adds nothing."""
        return {**self.fingerprint, **self.adapters.fingerprint(adapter)}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return torch.device(self.network.device)

    def new_kv(self) -> KVCache:
        """Return the empty KV states of a new session."""
        return self.forward.new_kv()


def load_model(
    settings: HandlerConfig,
    model_dir: Path,
    device: torch.device,
    progress: LoadReport = NO_REPORT,
) -> Model:
    """Load weights, tokenizer and processor.

    Raises:
        ConfigError: the model cannot be found or loaded, has pickled weights, or would not be served exactly.
    """
    name = resolve_model(settings.model, model_dir)
    with weights_counted(name, progress):
        network, owner, quantization = read_checkpoint(name, settings, model_dir, device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where kernels are launched and graphs captured
    network.to(device).eval()
    progress.begin("checking the model")
    model = build_model(
        Path(name).name,
        network,
        owner,
        settings.context_length,
        quantization,
        settings.image_tiling,
    )
    use_adapters(
        model,
        {name: model_dir / expand_home(path) for name, path in settings.adapters.items()},
    )
    progress.begin("compiling and checking kernels")
    accelerate(model, settings)
    return model


def use_adapters(model: Model, folders: Mapping[str, Path]) -> None:
    """Load adapters by name from folders, and try each of them.

    Raises:
        ConfigError: one cannot be used with the model.
    """
    network, forward = model.network, model.forward
    loaded = {name: load_adapter(network, name, path) for name, path in folders.items()}
    for name, adapter in loaded.items():
        forward.adapters.add(name, adapter)
        try:
            forward([1, 2, 3], [Span(model.new_kv(), 0, 3)], None, [2], [name])
        except Exception as error:  # stock code may call its layers in any way
            raise ConfigError(f"handler.adapters: {name}: it cannot be used: {error}") from error
        logger.info("adapter %s changes %d layers", name, len(adapter.changes))


def accelerate(model: Model, settings: HandlerConfig) -> None:
    """Enable the device's faster ways of computing that are verified to agree: see docs/performance.md.

    Of a model that is split, stock code computes all but the attention.
    """
    make_lean(model.network)
    is_split = settings.tensor_parallel > 1
    if settings.pack_linears and not is_split:
        _replace_linears(model.network, model.device, compact=settings.compact_weights)
    use_huge_pages(model.network.parameters())
    if settings.fused_layers and model.forward.flat and not is_split:
        _fuse(model)
    kernels = settings.attention_kernels and model.forward.flat and _use_kernels(model, settings)
    if kernels and settings.cuda_graphs and model.device.type == "cuda" and not is_split:
        logger.info("capturing decode steps")
        model.forward.capture(CudaCapturer(), fused=settings.fused_layers)


def _replace_linears(network: PreTrainedModel, device: torch.device, *, compact: bool) -> None:
    library = (
        load_library(cache_folder(), "language") if is_worthwhile(device, network.dtype) else None
    )
    if library is not None:
        dtypes = find_compact(network) if compact else {}
        counts = pack_towers(network), compile_linears(network, library, dtypes), len(dtypes)
        logger.info("linear layers: %d packed, %d compiled, of which %d hold 16 bits", *counts)
    elif can_pack(device, network.dtype):
        logger.info("%d linear layers are packed", pack(network))


def _fuse(model: Model) -> None:
    forward = model.forward
    fused = find_fused(model.network, forward.layout, forward.windows)
    if fused is None:
        return
    reason = forward.use_shortcut(fused)
    if reason:
        logger.warning("torch's operators compute the decoder layers: %s", reason)
    else:
        fused.cuts_steps = _are_pieces_faster(forward, fused)


def _are_pieces_faster(forward: Forward, fused: FusedLayers) -> bool:
    """Return True if the fused layers compute a prompt in pieces in less time than stock code does at once."""
    pairs = []
    for _ in range(_TIMES):
        fused.cuts_steps = True
        in_pieces = prompt_seconds(forward, _TIMED_TOKENS)
        fused.cuts_steps = False
        pairs.append((in_pieces, prompt_seconds(forward, _TIMED_TOKENS)))
    own, stock = (1000 * min(times) for times in zip(*pairs, strict=True))
    logger.info(
        "one call computes the decoder layers of %s steps: of a prompt of %d tokens in %.1f ms, stock code in %.1f ms",
        *("all" if own < stock else "short", _TIMED_TOKENS, own, stock),
    )
    return bool(own < stock)


def _use_kernels(model: Model, settings: HandlerConfig) -> bool:
    if not model.forward.for_kernels:
        logger.info("torch's operators compute the attention: kernels do not implement its rules")
        return False
    num_heads = model.forward.text_config.num_attention_heads
    num_heads //= settings.tensor_parallel
    kernels = find_kernels(model.forward.layout, num_heads, model.device)
    if not all_ranks(kernels is not None):  # or some would wait for the passes that verify them
        return False
    assert kernels is not None
    reason = model.forward.use_kernels(kernels)
    if reason:
        logger.warning("torch's operators compute the attention: %s", reason)
        return False
    logger.info("%s compute the attention of single tokens", type(kernels).__name__)
    return True


def build_model(
    name: str,
    network: PreTrainedModel,
    owner: Any,
    context_length: int | None = None,
    quantization: str | None = None,
    image_tiling: str | None = None,
) -> Model:
    """Combine a loaded network with its processor or tokenizer (`owner`); `image_tiling` is that of the configuration.

    Raises:
        ConfigError: the model would not be served exactly.
    """
    tokenizer = getattr(owner, "tokenizer", owner)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(f"{name}: it needs a fast tokenizer (a tokenizer.json)")
    sees = owner is not tokenizer and not hears(network.config)
    check_network(network, name, has_vision=sees, image_tiling=image_tiling)
    encoder = find_encoder(network, owner, image_tiling, sees=sees)
    forward = verified_forward(network, name, quantised=quantization is not None)
    kinds = encoder.kinds if encoder else ()
    text = _chat_text(name, network, tokenizer, owner, encoder)
    eos_ids = _eos_ids(network, tokenizer)
    window = find_window(network.config, name, context_length)
    logger.info("%s: a context has at most %d tokens, limited by %s", name, *window)
    return Model(
        name=name,
        network=network,
        tokenizer=tokenizer,
        text=text,
        encoder=encoder,
        context_tokens=window.num_tokens,
        eos_ids=frozenset(eos_ids),
        penalties=Penalties(network.generation_config, eos_ids, forward.vocab_size, name),
        token_bytes=TokenBytes(tokenizer.backend_tokenizer),
        forward=forward,
        fingerprint=fingerprint(network, tokenizer, owner, kinds, image_tiling),
        quantization=quantization,
    )


def _eos_ids(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    eos = network.generation_config.eos_token_id
    eos = tokenizer.eos_token_id if eos is None else eos
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def _chat_text(
    name: str,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    owner: Any,
    encoder: Encoder[Any] | None,
) -> ChatText:
    towers = encoder.towers if encoder else ()
    placeholders = [Placeholder(tower.token, tower.part) for tower in towers]
    form = encoder.form if isinstance(encoder, PrefixVision) else NO_FORM
    try:
        template = find_template(owner, tokenizer, network)
    except ValueError as error:
        raise ConfigError(
            f"{name}: the response template cannot be used: {error}; {_MEND}"
        ) from None
    text = ChatText(tokenizer, owner, placeholders, template, form)
    if not text.has_template and form is NO_FORM:
        logger.warning("%s has no chat template; set handler.chatTemplate for chats", name)
    return text
