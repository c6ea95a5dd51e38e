"""All decoder layers in one call on a CPU, for a step of few tokens or for a piece of a longer one."""

from __future__ import annotations

import copy
import ctypes
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.cpu_kernels.build import cache_folder, is_worthwhile, load_library
from ts_stateful.language.kernels.cpu.attention import CpuKernels
from ts_stateful.language.kernels.cpu.layer_facts import LayerFacts, NormFacts
from ts_stateful.language.kernels.cpu.library import (
    StepFacts,
    functions_for,
    num_splits,
)
from ts_stateful.language.kernels.cpu.rounded import Rounded
from ts_stateful.language.kernels.cpu.shortlist import Shortlist
from ts_stateful.language.kernels.cpu.weight_memory import use_huge_pages
from ts_stateful.language.kernels.decoder_layout import (
    Decoder,
    UnknownDecoderError,
    feed_forward_of,
    find_decoder,
    router_of,
)
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Rows, Table

__all__ = ["FusedLayers", "find_fused"]

logger = logging.getLogger(__name__)


def find_fused(
    network: PreTrainedModel, layout: KVLayout, windows: Sequence[int | None]
) -> FusedLayers | None:
    """Return the fused layers of a network, still to be verified; None where it or its device has none."""
    if not is_worthwhile(network.device, network.dtype):
        return None
    try:
        decoder = find_decoder(network)
        library = load_library(cache_folder(), "language")
        return None if library is None else FusedLayers(decoder, layout, windows, library)
    except UnknownDecoderError as error:
        reason = str(error)
    except Exception as error:  # stock code of another version may have other attributes
        reason = f"{type(error).__name__}: {error}"
    logger.info("torch's operators compute the decoder layers: %s", reason)
    return None


class FusedLayers:
    """The logits of steps, from a stock network's own weights, which must stay where they are.

    A stock decoder layer is some thirty operators, whose overhead exceeds their work when there are few rows. `src/layer.h`
    computes all layers and the last norm in one call. Embeddings, rotary positions and the output layer stay the network's
    modules. What layers add to is float32, also in a bfloat16 network. `windows` are the layers' attention windows in tokens,
    None for all. Used by one thread.

    A step of many tokens is computed in pieces if `cuts_steps`.

    Raises:
        UnknownDecoderError: the kernels do not support the layers' dimensions.
    """

    def __init__(
        self,
        decoder: Decoder,
        layout: KVLayout,
        windows: Sequence[int | None],
        library: ctypes.CDLL,
    ) -> None:
        if not CpuKernels.serves(layout):
            raise UnknownDecoderError(
                f"states of {layout.dtype} or their dimensions are not supported"
            )
        self._decoder = decoder
        self._hooks = [
            hooks for m in decoder.modules for hooks in (m._forward_hooks, m._forward_pre_hooks)
        ]
        of_dtype = torch.empty(0, dtype=layout.dtype)
        turned = decoder.rotary(of_dtype, torch.tensor([[0]]))[0].shape[-1]
        layers = [
            LayerFacts.of(decoder, *each, turned)
            for each in zip(decoder.layers, layout.layers, windows, strict=True)
        ]
        # Those of bfloat16 are copies.
        self._sinks = [_sinks_of(layer) for layer in decoder.layers]
        for facts, sinks in zip(layers, self._sinks, strict=True):
            facts.sinks = None if sinks is None else sinks.data_ptr()
        self._layers = (LayerFacts * len(layers))(*layers)
        routers = [router_of(feed_forward_of(layer)) for layer in decoder.layers]
        self._routed = [(f.experts, r) for f, r in zip(self._layers, routers, strict=True) if r]
        self._norm = NormFacts.of(decoder.norm, decoder.norm_offset)
        self._heads = min(shape.heads for shape in layout.layers)
        self._group = max(layer.attention.group for layer in layers)
        self._library = library
        self._functions = functions_for(library, layout.dtype, decoder.weights)
        self._rounded: list[Rounded] = []  # weights, if these are used
        can_tie = decoder.logit_cap is not None  # unlike logits, where they are rounded
        self._shortlist = None if can_tie else Shortlist.of(decoder.head, layout.dtype, library)
        self.cuts_steps = True
        self._step = StepFacts()
        self._scratch = torch.empty(0)

    def rounded(self) -> FusedLayers:
        """Return layers of the same weights in 8 bits, for drafts: they take a quarter or a half of the time to read.

        Raises:
            UnknownDecoderError: the layers have experts, their inputs are not float32, or their dimensions are not supported.
        """
        if self._routed or self._decoder.norm.weight.dtype is not torch.float32:
            raise UnknownDecoderError("layers of experts or of 16 bits are not rounded")
        other, layers = copy.copy(self), LayerFacts * len(self._layers)
        facts, kept = zip(
            *(facts.rounded(self._decoder.weights) for facts in self._layers), strict=True
        )
        other._layers, other._rounded = layers(*facts), list(itertools.chain(*kept))
        use_huge_pages(rounded.numbers for rounded in other._rounded)
        other._functions = functions_for(self._library, torch.float32, torch.int8)
        other._step, other._scratch, other.cuts_steps = StepFacts(), torch.empty(0), True
        return other

    @property
    def num_weights(self) -> int:
        """The number of weights that a token's layers read."""
        linears = [linear for facts in self._layers for linear in facts.linears]
        return sum(linear.in_ * linear.out for linear in linears)

    def __call__(self, rows: Rows) -> Tensor | None:
        """Return the logits after the tokens to keep.

        Return None if the stock network must run, because there are too many tokens, a position is too far, or it has hooks.
        """
        is_long = len(rows.ids) > self._functions.most_rows
        end = self._decoder.num_positions
        is_far = end is not None and int(rows.positions.max()) >= end
        if (is_long and not self.cuts_steps) or is_far or any(self._hooks):
            self._functions.spread_threads(torch.get_num_threads())
            return None
        for experts, router in self._routed:
            experts.chosen = router.top_k  # which `all_chosen` changes
        logits = [self._piece(piece) for piece in rows.pieces(self._functions.most_rows)]
        return torch.cat([some for some in logits if some is not None]) if is_long else logits[0]

    def _piece(self, rows: Rows) -> Tensor | None:
        """Compute few tokens; return the logits after those to keep, None if there are none."""
        table = Table.of(rows.spans, all_rows=True)
        embedded = self._decoder.embed(rows)
        cos, sin = self._decoder.rotary(embedded, rows.positions)
        hidden = embedded.float()
        self._decode(hidden, cos.float(), sin.float(), table, rows.deepstack)
        hidden = hidden[0].to(embedded.dtype)
        if rows.keep is not None and len(rows.keep) < len(hidden):
            if not rows.keep:
                return None
            hidden = hidden[torch.tensor(rows.keep)]
        if self._shortlist is not None and rows.draws is not None:
            logits = self._shortlist(hidden, rows.draws, self._decoder.logit_divisor)
            if logits is not None:
                return self._decoder.scaled(logits)
        return self._decoder.logits(hidden)

    def _decode(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, table: Table, deepstack: Tensor | None
    ) -> None:
        """Compute all layers and the last norm on `hidden` `(1, rows, hidden)`, in place; it, `cos` and `sin` are float32."""
        added = hidden[:0] if deepstack is None else deepstack.float().contiguous()
        splits = num_splits(table, self._heads, self._group)
        step, layers, count = self._step, self._layers, len(self._layers)
        step.table, step.num_tokens = table.buffer.data_ptr(), table.num_tokens
        step.num_rows, step.num_spans = table.num_rows, table.num_spans
        self._functions.decode_layers(
            ctypes.byref(step),
            layers,
            count,
            cos.data_ptr(),
            sin.data_ptr(),
            ctypes.byref(self._norm),
            splits,
            torch.get_num_threads(),
            self._room(self._functions.decode_scratch(layers, count, table.num_rows, splits)),
            added.data_ptr(),
            len(added),
            hidden.data_ptr(),
        )

    def _room(self, size: int) -> int:
        """Return the address of room for `size` floats, valid until the next call."""
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size)
        return self._scratch.data_ptr()


def _sinks_of(layer: Any) -> Tensor | None:
    sinks = getattr(layer.self_attn, "sinks", None)
    return None if sinks is None else sinks.detach().float()
