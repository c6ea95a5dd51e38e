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
from transformers.cache_utils import DynamicCache, get_layer_types_and_kwargs

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kernels.attention import FLAT, Kernels, StepCache, unused_mask
from ts_stateful.language.kernels.gpu.cuda_graphs import Capturer, DecodeGraphs, RowInputs
from ts_stateful.language.kernels.verify import verify_steps
from ts_stateful.language.kv.cache import KVCache, KVLayout, LayerShape
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.kv.to_device import to_device

__all__ = ["Forward", "find_layout"]

logger = logging.getLogger(__name__)

# Tokens of the sequences by which passes are verified, side by side, in two passes.
_COUNTS = (4, 1), (2, 2), (1, 1)
# The same for kernels, which read many tokens at once.
_KERNEL_COUNTS = (70, 1), (2, 2), (9, 1), (1, 1)
_FEW_TOKENS = 256  # the shortcut's most
# Of the largest logit.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Forward:
    """Calls a model on new tokens of several sessions in one pass if `flat`, else of one session only.

    Its attention function, and faster ways of computing the same, are used only after verification when the model is loaded.
    """

    def __init__(self, network: PreTrainedModel, layout: KVLayout) -> None:
        self.layout = layout
        self._network = network
        self._cache = StepCache(len(layout.layers))
        accepts = inspect.signature(network.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepts
        self._takes_positions = "position_ids" in accepts  # models with ALiBi do not
        self.rope_index = getattr(network.base_model, "get_rope_index", None)
        self._mask = unused_mask(network.device)
        self._shortcut: Callable[[Rows], Tensor | None] | None = None  # for steps of few tokens
        self.windows: list[int | None] = []  # of the layers' attention, as the model passed them
        self.stock_attention = self._text_config._attn_implementation
        self.flat = False
        self.flat = self._enable_flat()

    @torch.inference_mode()
    def __call__(
        self,
        ids: list[int],
        spans: Sequence[Span],
        positions: Tensor | None,
        keep: list[int],
        **inputs: Any,
    ) -> Tensor:
        """Return logits `(len(keep), vocabulary)` after the tokens `keep` of `ids`; `ids` are those of `spans` in order.

        `positions` is `(1, n)`, or `(3, 1, n)` for models with M-RoPE; None counts them from the spans. The spans' states are
        written, and are valid if nothing is raised.
        """
        positions = self._text_positions(spans) if positions is None else positions
        logits = None
        if self._shortcut and not inputs and len(ids) <= _FEW_TOKENS:
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
            logits = self._call(
                to_device(ids, device)[None], to_device(positions, device), **inputs
            )
        for span in spans:
            span.kv.length = span.stop
        if whole and len(keep) < len(ids):
            return logits[to_device(keep, logits.device)]
        return logits

    def _call(self, ids: Tensor, positions: Tensor, **inputs: Any) -> Tensor:
        """Return the logits of tokens `(1, n)` whose spans or table the cache has."""
        if self._takes_positions:
            inputs["position_ids"] = positions
        if self.flat:
            inputs["attention_mask"] = self._mask
        output = self._network(
            input_ids=ids, past_key_values=self._cache, use_cache=True, return_dict=True, **inputs
        )
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def use_kernels(self, kernels: Kernels) -> str:
        """Use kernels from now on if the model's logits agree; else return the reason."""
        assert self.flat
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
        kinds = set(get_layer_types_and_kwargs(config)[0])
        if before not in ("sdpa", "eager") or not kinds <= {"full_attention", "sliding_attention"}:
            reason = f"its attention is {before}, its layers are {', '.join(sorted(kinds))}"
        else:
            reason = self._difference()
        if reason:
            config._attn_implementation = before
            logger.warning("every session gets its own forward pass: %s", reason)
        return not reason

    def _difference(self) -> str:
        config = self._text_config
        _, layer_kwargs = get_layer_types_and_kwargs(config)
        expected = torch.cat([self._sample([counts])[0] for counts in _COUNTS])
        config._attn_implementation = FLAT
        self.flat = True
        try:
            found, _ = self._sample(_COUNTS)
            self.windows = [states.window for states in self._cache.states or ()]
        except Exception as error:  # stock code that was not made for it may raise anything
            return f"{type(error).__name__}: {error}"
        finally:
            self.flat = False
        # The samples are too short to reach the end of a window, so every layer that has one must pass it.
        expected_windows = [kwargs.get("sliding_window") for kwargs in layer_kwargs]
        if self.windows != expected_windows:
            return (
                f"its layers use windows {self.windows}, its configuration has {expected_windows}"
            )
        return self._apart(found, expected)

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


@torch.inference_mode()
def find_layout(network: PreTrainedModel, name: str) -> KVLayout:
    """Return the shape of a token's states in every layer, as the model writes them.

    Raises:
        ConfigError: not every layer keeps keys and values.
    """
    cache = DynamicCache()
    token = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    network(input_ids=token, past_key_values=cache, use_cache=True)
    layers = cache.layers
    if not layers or not all(isinstance(layer.keys, Tensor) for layer in layers):
        raise ConfigError(
            f"{name}: not every layer keeps keys and values, so sessions cannot be kept"
        )
    shapes = [
        LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
        for layer in layers
    ]
    return KVLayout(tuple(shapes), layers[0].keys.dtype)
