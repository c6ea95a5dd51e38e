"""One pass through a stock `transformers` model, for many sessions at once where the model supports it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.language.kernels.attention import StepCache, unused_mask
from ts_stateful.language.kernels.choosers import all_chosen
from ts_stateful.language.kernels.gpu.cuda_graphs import Capturer, DecodeGraphs, RowInputs
from ts_stateful.language.kernels.gpu.fused_rows import FusedRows, find_fused_rows
from ts_stateful.language.kernels.samples import apart, sample, sample_rows
from ts_stateful.language.kernels.states import Kernels
from ts_stateful.language.kernels.verify import verify_choices, verify_steps
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.host_copies import to_device
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Block, Rows, Span
from ts_stateful.language.network.adapters import Adapters
from ts_stateful.language.network.layer_kinds import layer_chunks, layer_windows
from ts_stateful.language.network.layout import cache_name
from ts_stateful.language.network.sampler import SamplingRow
from ts_stateful.language.network.spliced import deepstack_added, splice
from ts_stateful.language.parallel.driver import Driver

__all__ = ["Batching", "Forward"]

# Tokens of the sequences by which kernels are verified, side by side, in two passes.
_KERNEL_COUNTS = (70, 1), (2, 2), (9, 1), (1, 1)
_EMBEDDED = "inputs_embeds"  # the argument of models that take embeddings instead of ids


class Batching(NamedTuple):
    """The passes that stock code can take: `flat` for new tokens of several sessions, `batched` for the next one of each."""

    flat: bool = False
    batched: bool = False
    token_by_token: bool = False  # it reads recurrent states for these alone, as Mamba 1 does
    for_kernels: bool = False  # kernels implement the layers' attention


class Forward:
    """Calls a model on new tokens of several sessions, by passes that `one_pass` found, or else of one session.

    Faster ways of computing the same are used only after verification when the model is loaded. `stock_attention` is what the
    network was loaded with.
    """

    def __init__(
        self, network: PreTrainedModel, layout: KVLayout, stock_attention: str, batching: Batching
    ) -> None:
        self.layout = layout
        self.network = network
        chunks = layer_chunks(self.text_config)
        self.cache = StepCache(len(layout.layers), chunks, layout.recurrent)
        accepts = inspect.signature(network.forward).parameters
        self._cache_name = cache_name(network)
        self._keeps_logits = "logits_to_keep" in accepts
        self._attends = any(shape.heads for shape in layout.layers)
        self._takes_positions = "position_ids" in accepts  # models with ALiBi do not
        self.rope_index = getattr(network.base_model, "get_rope_index", None)
        self._first_position = int(layout.per_prompt)  # PaliGemma counts them from 1
        self._mask = unused_mask(network.device)
        self.adapters = Adapters(network)
        self.driver: Driver | None = None  # of the model's other parts, on other devices
        self.shortcut: Callable[[Rows], Tensor | None] | None = None  # for some steps, or for all
        self.graphs: DecodeGraphs | None = None  # if these are the shortcut
        self._fused: FusedRows | None = None
        self.stock_attention = stock_attention
        self.flat, self.batched, self.token_by_token, self.for_kernels = batching

    def with_batching(self, batching: Batching) -> Forward:
        """Return other passes through the same network, which use no adapters and no kernels yet."""
        return Forward(self.network, self.layout, self.stock_attention, batching)

    @torch.inference_mode()
    def __call__(
        self,
        ids: list[int],
        spans: Sequence[Span],
        positions: Tensor | None,
        keep: list[int],
        adapters: Sequence[str | None] = (),
        draws: Sequence[SamplingRow] | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Return logits `(len(keep), vocabulary)` after the tokens `keep` of `ids`; `ids` are those of `spans` in order.

        `positions` is `(1, n)`, or `(3, 1, n)` for models with M-RoPE; None counts them from the spans. `adapters` are the
        names of the spans' adapters, if any has one. The spans' states are written, and are valid if nothing is raised. If not
        `flat`, the spans of several sessions have one token each, which is not their first. With `draws`, by which the next
        tokens are chosen, logits that do not decide may be estimates that are lower. `inputs` are the model's, or `spliced`:
        the tokens that stand for parts of images or clips, a mask `(n,)`, and their feature maps: embeddings, and what is added
        to the hidden states after each of the first layers.
        """
        positions = self.text_positions(spans) if positions is None else positions
        if self.token_by_token and spans[0].start and spans[0].num_tokens > 1:
            return self._one_by_one(ids, spans[0], positions, adapters)[keep]
        rows = Rows(ids, positions, spans, keep if len(keep) < len(ids) else None, draws)
        if self.driver is None:
            return self._compute(rows, adapters, inputs)
        with self.driver.followed(rows, keep, inputs):
            return self._compute(rows, adapters, inputs)

    def _compute(
        self, rows: Rows, adapters: Sequence[str | None], inputs: dict[str, Any]
    ) -> Tensor:
        if "spliced" in inputs:
            embedded, deepstack = splice(self.network, rows.ids, *inputs.pop("spliced"))
            rows = rows._replace(embedded=embedded, deepstack=deepstack)
        logits, spans = None, rows.spans
        if self.shortcut and not (inputs or any(adapters) or any(s.blocks for s in spans)):
            for span in spans:
                span.kv.reserve(span.stop)
            logits = self.shortcut(rows)
        if logits is None:
            counts = [span.num_tokens for span in spans] if any(adapters) else []
            with self.adapters.applied(adapters, counts):
                logits = self._by_model(rows, inputs)
        self.cache.end(spans)
        return logits

    def _by_model(self, rows: Rows, inputs: dict[str, Any]) -> Tensor:
        self.cache.begin(rows.spans, flat=self.flat)
        if rows.embedded is not None:
            inputs[_EMBEDDED] = rows.embedded
        keep = None if rows.keep is None else to_device(rows.keep, self.device)
        ids, places = to_device(rows.ids, self.device)[None], to_device(rows.positions, self.device)
        if len(rows.spans) > 1 and not self.flat:
            ids, places = ids.mT, places.mT
        elif keep is not None and self._keeps_logits:
            inputs["logits_to_keep"], keep = keep, None
        with deepstack_added(self.network, rows.deepstack):
            logits = self._call(ids, places, **inputs)
        return logits if keep is None else logits[keep]

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
        """Return the logits of `n` tokens `(1, n)` or `(n, 1)`, whose spans or table the cache has."""
        if self._takes_positions:
            inputs["position_ids"] = positions
        if self.cache.states is not None and self._attends:
            inputs["attention_mask"] = self._mask
        elif self.layout.per_prompt:
            inputs["token_type_ids"] = self.cache.token_types()
        if _EMBEDDED not in inputs:
            inputs["input_ids"] = ids
        output = self.network(
            use_cache=True,
            return_dict=True,
            **inputs,
            **{self._cache_name: self.cache},
        )
        logits: Tensor = output.logits.flatten(0, 1)
        return logits

    @torch.inference_mode()
    def use_kernels(self, kernels: Kernels) -> str:
        """Use kernels from now on if the model's logits agree; else return the reason."""
        assert self.for_kernels
        expected, _ = sample(self, _KERNEL_COUNTS)
        self.cache.kernels = kernels
        try:
            found, _ = sample(self, _KERNEL_COUNTS)
            reason = apart(found, expected, self.dtype)
        except torch.AcceleratorError:
            raise  # the device cannot compute any more
        except Exception as error:  # compilers may raise anything
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self.cache.kernels = None
        return reason

    @torch.inference_mode()
    def capture(self, capturer: Capturer, *, fused: bool = False) -> list[int]:
        """Replay steps of few tokens where that is faster, `fused` if there are such kernels; return their numbers of rows."""
        assert self.cache.kernels is not None
        self._fused = find_fused_rows(self) if fused else None
        graphs = DecodeGraphs(self, capturer)
        graphs.prepare(*sample_rows(self, _KERNEL_COUNTS))
        self.shortcut = self.graphs = graphs if graphs.sizes else None
        return graphs.sizes

    @torch.inference_mode()
    def use_shortcut(self, shortcut: Callable[[Rows], Tensor | None]) -> str:
        """Compute steps by `shortcut` from now on if it agrees with the model; else return the reason.

        It receives rows that have room, and returns the logits to keep, or None where the model must be called.
        """
        assert self.flat
        assert self.shortcut is None

        def stock(rows: Rows) -> Tensor:
            logits = self._by_model(rows, {})
            self.cache.end(rows.spans)
            return logits

        try:
            with all_chosen(self.network):
                embeddings = self.network.get_input_embeddings()
                sizes = self.vocab_size, self.position_axes
                reason = verify_steps(
                    stock, shortcut, self.layout, self.windows, *sizes, embed=embeddings
                )
            reason = reason or verify_choices(stock, shortcut, self.layout, *sizes)
        except Exception as error:  # it may raise anything; the model works without it
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            self.shortcut = shortcut
        return reason

    def new_kv(self) -> KVCache:
        """Return the empty KV states of a new session."""
        if self.driver is not None:
            return self.driver.new_kv(self.layout, self.device)
        return KVCache(self.layout, self.device)

    @property
    def windows(self) -> list[int | None]:
        """The windows in tokens of the layers' attention; None where there is none."""
        return layer_windows(self.text_config)

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return torch.device(self.network.device)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its logits."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the model knows."""
        return int(self.text_config.vocab_size)

    @property
    def position_axes(self) -> tuple[int, ...]:
        """The shape of positions without the tokens."""
        return (1,) if self.rope_index is None else (3, 1)

    def decode(self, inputs: RowInputs) -> Tensor:
        """Return the logits of rows by the kernels."""
        if self._fused is not None and (logits := self._fused(inputs)) is not None:
            return logits
        self.cache.begin_rows(inputs.table)
        return self._call(inputs.ids, inputs.positions)

    def text_positions(self, spans: Sequence[Span]) -> Tensor:
        """Return the positions of tokens that are text from the beginning of their sessions."""
        first = self._first_position
        counted = [first + i for span in spans for i in range(span.start, span.stop)]
        positions = torch.from_numpy(np.array([counted], np.int64))  # in a third of torch's time
        return positions if self.rope_index is None else positions.expand(3, 1, -1)

    def prompt_blocks(self, num_prompt: int) -> list[Block]:
        """Return the tokens of a prompt as one block, if they see one another."""
        return [Block(0, num_prompt, False)] if self.layout.per_prompt else []

    @property
    def text_config(self) -> Any:
        """The configuration of the language model."""
        return self.network.config.get_text_config(decoder=True)
