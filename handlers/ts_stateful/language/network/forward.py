"""One pass through a stock `transformers` model, for many sessions at once where the model supports it."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.language.kernels.attention import FLAT, Kernels, StepCache, unused_mask
from ts_stateful.language.kernels.gpu.cuda_graphs import Capturer, DecodeGraphs, RowInputs
from ts_stateful.language.kernels.indexes import few_chosen
from ts_stateful.language.kernels.latent import keep_latents
from ts_stateful.language.kernels.own_attention import exchange_methods
from ts_stateful.language.kernels.verify import verify_steps
from ts_stateful.language.kv.cache import KVCache, KVLayout
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.kv.to_device import to_device
from ts_stateful.language.network.adapters import Adapters
from ts_stateful.language.network.layer_kinds import (
    INDEXED,
    layer_chunks,
    layer_kinds,
    layer_windows,
    short_chunks,
)

__all__ = ["Forward"]

logger = logging.getLogger(__name__)

# Tokens of the sequences by which passes are verified, side by side, in two passes.
_COUNTS = (4, 1), (2, 2), (1, 1)
# The same for kernels, which read many tokens at once.
_KERNEL_COUNTS = (70, 1), (2, 2), (9, 1), (1, 1)
_FEW_TOKENS = 256  # the shortcut's most
_FLAT_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "dummy", INDEXED}
_SHORT_CHUNK = 3  # tokens: the samples reach beyond it
# Of the largest logit.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Forward:
    """Calls a model on new tokens of several sessions in one pass if `flat`, else of one session only.

    Its attention function, and faster ways of computing the same, are used only after verification when the model is loaded.
    """

    def __init__(self, network: PreTrainedModel, layout: KVLayout) -> None:
        self.layout = layout
        self._network = network
        chunks = layer_chunks(self._text_config)
        self._cache = StepCache(len(layout.layers), chunks, layout.recurrent)
        accepts = inspect.signature(network.forward).parameters
        self._cache_name = "past_key_values" if "past_key_values" in accepts else "cache_params"
        self._keeps_logits = "logits_to_keep" in accepts
        self._takes_positions = "position_ids" in accepts  # models with ALiBi do not
        self.rope_index = getattr(network.base_model, "get_rope_index", None)
        self._mask = unused_mask(network.device)
        self.adapters = Adapters(network, {})
        self._shortcut: Callable[[Rows], Tensor | None] | None = None  # for steps of few tokens
        self.windows: list[int | None] = []  # of the layers' attention, as the model passed them
        self.for_kernels = False  # if kernels implement the layers' attention
        self.stock_attention = self._text_config._attn_implementation
        self.flat = False
        # True if stock code reads recurrent states for single tokens alone, as Mamba 1 does.
        self.token_by_token = False
        self.flat = self._enable_flat()

    @torch.inference_mode()
    def __call__(
        self,
        ids: list[int],
        spans: Sequence[Span],
        positions: Tensor | None,
        keep: list[int],
        adapters: Sequence[str | None] = (),
        **inputs: Any,
    ) -> Tensor:
        """Return logits `(len(keep), vocabulary)` after the tokens `keep` of `ids`; `ids` are those of `spans` in order.

        `positions` is `(1, n)`, or `(3, 1, n)` for models with M-RoPE; None counts them from the spans. `adapters` are the
        names of the spans' adapters, if any has one. The spans' states are written, and are valid if nothing is raised.
        """
        positions = self._text_positions(spans) if positions is None else positions
        if self.token_by_token and spans[0].start and len(ids) > 1:
            return self._one_by_one(ids, spans[0], positions, adapters)[keep]
        logits = None
        if self._shortcut and not (inputs or any(adapters)) and len(ids) <= _FEW_TOKENS:
            for span in spans:
                span.kv.reserve(span.stop)
            some = keep if len(keep) < len(ids) else None
            logits = self._shortcut(Rows(ids, positions, spans, some))
        whole = logits is None and not self._keeps_logits  # or only those of the tokens to keep
        if logits is None:
            device = self._network.device
            self._cache.begin(spans, flat=self.flat)
            if self._keeps_logits:
                inputs["logits_to_keep"] = to_device(keep, device)
            counts = [span.num_tokens for span in spans] if any(adapters) else []
            with self.adapters.applied(adapters, counts):
                logits = self._call(
                    to_device(ids, device)[None], to_device(positions, device), **inputs
                )
        self._cache.end(spans)
        if whole and len(keep) < len(ids):
            return logits[to_device(keep, logits.device)]
        return logits

    def _one_by_one(
        self, ids: list[int], span: Span, positions: Tensor, adapters: Sequence[str | None]
    ) -> Tensor:
        """Return the logits after each token of a span."""
        steps = [
            self(
                [token],
                [Span(span.kv, span.start + i, 1)],
                positions[..., i : i + 1],
                [0],
                adapters,
            )
            for i, token in enumerate(ids)
        ]
        return torch.cat(steps)

    def _call(self, ids: Tensor, positions: Tensor, **inputs: Any) -> Tensor:
        """Return the logits of tokens `(1, n)` whose spans or table the cache has."""
        if self._takes_positions:
            inputs["position_ids"] = positions
        if self.flat:
            inputs["attention_mask"] = self._mask
        output = self._network(
            input_ids=ids,
            use_cache=True,
            return_dict=True,
            **inputs,
            **{self._cache_name: self._cache},
        )
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def use_kernels(self, kernels: Kernels) -> str:
        """Use kernels from now on if the model's logits agree; else return the reason."""
        assert self.for_kernels
        expected, _ = self._sample(_KERNEL_COUNTS)
        self._cache.kernels = kernels
        try:
            found, _ = self._sample(_KERNEL_COUNTS)
            reason = self._apart(found, expected)
        except torch.AcceleratorError:
            raise  # the device cannot compute any more
        except Exception as error:  # compilers may raise anything
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._cache.kernels = None
        return reason

    @torch.inference_mode()
    def capture(self, capturer: Capturer) -> list[int]:
        """Replay steps of single tokens from now on where that is faster; return their numbers of rows. Needs kernels."""
        assert self._cache.kernels is not None
        graphs = DecodeGraphs(self, capturer)
        spans = [Span(kv, kv.length, 1) for kv in self._sample(_KERNEL_COUNTS)[1]]
        for span in spans:
            span.kv.reserve(span.stop)
        one, other = (
            Rows([first + i for i in range(len(spans))], self._text_positions(order), order)
            for first, order in ((1, spans), (11, spans[::-1]))
        )
        graphs.prepare(one, other)
        self._shortcut = graphs if graphs.sizes else None
        return graphs.sizes

    @torch.inference_mode()
    def use_shortcut(self, shortcut: Callable[[Rows], Tensor | None]) -> str:
        """Compute steps of few tokens by `shortcut` from now on if it agrees with the model; else return the reason.

        It receives rows that have room, and returns the logits to keep, or None where the model must be called.
        """
        assert self.flat
        assert self._shortcut is None

        def stock(rows: Rows) -> Tensor:
            return self(rows.ids, rows.spans, rows.positions, list(range(len(rows.ids))))

        try:
            vocab_size = self._text_config.vocab_size
            reason = verify_steps(stock, shortcut, self.layout, self.windows, vocab_size)
        except Exception as error:  # it may raise anything; the model works without it
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            self._shortcut = shortcut
        return reason

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return torch.device(self._network.device)

    @property
    def position_axes(self) -> tuple[int, ...]:
        """The shape of positions without the tokens."""
        return (1,) if self.rope_index is None else (3, 1)

    def decode(self, inputs: RowInputs) -> Tensor:
        """Return the logits of rows by the kernels."""
        self._cache.begin_rows(inputs.table)
        return self._call(inputs.ids, inputs.positions)

    def _text_positions(self, spans: Sequence[Span]) -> Tensor:
        positions = torch.tensor([[i for span in spans for i in range(span.start, span.stop)]])
        return positions if self.rope_index is None else positions.expand(3, 1, -1)

    @property
    def _text_config(self) -> Any:
        return self._network.config.get_text_config(decoder=True)

    def _enable_flat(self) -> bool:
        """Give the model the attention of many sessions; return True if its logits stay the same."""
        config, before = self._text_config, self.stock_attention
        kinds = sorted(layer_kinds(config) - _FLAT_KINDS)
        if before not in ("sdpa", "eager"):
            reason = f"its attention is {before}, not sdpa or eager"
        elif kinds:
            reason = f"its layers of {', '.join(kinds)} take one session at a time"
        else:
            keep_latents(self._network)
            exchange_methods(self._network)
            reason = self._difference()
        if reason:
            config._attn_implementation = before
            logger.warning("every session gets its own forward pass: %s", reason)
        return not reason

    def _difference(self) -> str:
        config = self._text_config
        with short_chunks(config, self._cache, _SHORT_CHUNK), few_chosen(self._network):
            expected = torch.cat([self._sample([counts])[0] for counts in _COUNTS])
            found = self._sample_flat(FLAT)
            if found is None:  # Falcon never asks the library, and calls torch itself
                found = self._sample_flat(self.stock_attention)
        if found is None:
            return (
                f"{type(self._network).__name__} computes its attention by code of its own, "
                "which takes one session at a time"
            )
        layers = self._cache.states or ()
        self.windows = [states.window for states in layers]
        self.for_kernels = all(states.for_kernels for states in layers)
        # The samples are too short to reach the end of a window, so every layer that has one must pass it.
        windows = layer_windows(config)
        if self.windows != windows:
            return (
                f"its attention receives windows {self.windows}, not its configuration's {windows}"
            )
        apart = self._apart(found, expected)
        return apart and f"in one pass for all {apart}"

    def _sample_flat(self, attention: str) -> Tensor | None:
        """Return the samples' logits by one pass for all, with this attention; None if the model cannot compute it."""
        self._text_config._attn_implementation = attention
        self.flat = True
        try:
            return self._sample(_COUNTS)[0]
        except Exception as error:  # stock code that was not made for it may raise anything
            logger.debug("one pass for all sessions failed", exc_info=error)
            return None
        finally:
            self.flat = False

    def _apart(self, found: Tensor, expected: Tensor) -> str:
        largest, apart = float(expected.abs().max()), float((found - expected).abs().max())
        bound = _TOLERANCE.get(self._network.dtype, 1e-3) * max(1.0, largest)
        return "" if apart <= bound else f"logits differ by {apart:.2g} of {largest:.2g}"

    def _sample(self, sequences: Sequence[tuple[int, int]]) -> tuple[Tensor, list[KVCache]]:
        """Feed sequences in two passes; return their logits, `(sequences, vocabulary)` float32, and states."""
        vocabulary = self._text_config.vocab_size
        caches = [KVCache(self.layout, self._network.device) for _ in sequences]
        for part in range(2):
            spans = [
                Span(kv, kv.length, counts[part])
                for kv, counts in zip(caches, sequences, strict=True)
            ]
            ids = [
                (31 * s.num_tokens + 7 * i) % vocabulary
                for s in spans
                for i in range(s.start, s.stop)
            ]
            ends = itertools.accumulate(span.num_tokens for span in spans)
            logits = self(ids, spans, None, [end - 1 for end in ends])
        return logits.float(), caches
