"""Attention on compressed keys and values (MLA), for many sessions in one pass.

Stock code keeps one latent a token and expands it to the keys and values of all heads, of the whole context in every step. The
expansion is linear, so it can be absorbed: it is applied to the queries, and to the outputs, which are few. Section 2.1.2 of
DeepSeek-V2 (arXiv:2405.04434) describes it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.indexes import PerSession
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.states import States

__all__ = ["Latents", "keep_latents"]

_PLAIN = (nn.Linear, CompiledLinear)


def keep_latents(network: nn.Module) -> None:
    """Let attention modules that expand latents leave those of many sessions as they are; tensors are expanded as before."""
    for module in network.modules():
        attention: Any = module
        if hasattr(type(attention), "expand_kv"):
            attention.expand_kv = partial(_expand, attention)


def _expand(module: Any, latents: Any, turned: Any) -> tuple[Any, Any]:
    if isinstance(latents, States):
        kept = Latents(latents, module)
        return kept, kept
    expanded: tuple[Tensor, Tensor] = type(module).expand_kv(module, latents, turned)
    return expanded


class Latents:
    """The states of a layer: latents `(1, tokens, rank)` as keys, and rotated keys of all heads `(1, tokens, dim)` as values.

    `module` is the stock attention, whose `kv_b_proj` expands latents.
    """

    def __init__(self, states: States, module: Any) -> None:
        self._states = states
        self._module = module
        states.for_kernels = False

    def attend(
        self, query: Tensor, rule: Rule, window: int | None, chosen: PerSession | None = None
    ) -> Tensor:
        """Return the attention of queries `(1, heads, tokens, dim)` as `(1, tokens, heads, value_dim)`; see `States`."""
        states, counts = self._states, self._states.counts
        parts = list(query.split(counts, dim=2))
        few = [index for index, count in enumerate(counts) if self._absorbs(index, count)]
        sizes = [counts[index] for index in few]
        rules: list[_Absorbed | _Expanded] = [_Expanded(rule, self._module)] * len(parts)
        if few:
            absorbed = self._absorb(torch.cat([parts[index] for index in few], dim=2))
            for index, part in zip(few, absorbed.split(sizes, dim=2), strict=True):
                parts[index], rules[index] = part, _Absorbed(_with_scale(rule, query))
        outputs = [
            states.attend_span(index, part, rules[index], window, chosen)
            for index, part in enumerate(parts)
        ]
        if few:
            released = self._release(torch.cat([outputs[index] for index in few], dim=1))
            for index, part in zip(few, released.split(sizes, dim=1), strict=True):
                outputs[index] = part
        return torch.cat(outputs, dim=1)

    def _absorbs(self, index: int, count: int) -> bool:
        """Return True if absorbing takes fewer multiplications than expanding all that session `index` sees."""
        if not _is_plain(self._module.kv_b_proj):
            return False
        rank = self._module.kv_lora_rank
        width = self._module.qk_nope_head_dim + self._module.v_head_dim
        length = self._states.lengths[index]
        return bool(count * (rank * width + length * (2 * rank - width)) <= length * rank * width)

    def _absorb(self, query: Tensor) -> Tensor:
        """Return queries of latents and rotated keys, `(1, heads, tokens, rank + rope_dim)`."""
        plain, turned = query.split(
            [self._module.qk_nope_head_dim, self._module.qk_rope_head_dim], dim=-1
        )
        return torch.cat([plain @ self._weights[0], turned], dim=-1)

    def _release(self, output: Tensor) -> Tensor:
        """Return the values `(1, tokens, heads, value_dim)` of mixed latents `(1, tokens, heads, rank)`."""
        values = output.transpose(1, 2) @ self._weights[1].transpose(1, 2)
        return values.transpose(1, 2)

    @property
    def _weights(self) -> tuple[Tensor, ...]:
        """The matrices of every head that expand keys and values, `(heads, dim, rank)`."""
        module = self._module
        dims = [module.qk_nope_head_dim, module.v_head_dim]
        weights = module.kv_b_proj.weight.view(-1, sum(dims), module.kv_lora_rank)
        return tuple(weights.split(dims, dim=1))


class _Absorbed(NamedTuple):
    rule: Rule

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend as one head of keys, of which the latents are the values too."""
        return self.rule.attend(query, torch.cat([keys, values], dim=-1), keys, mask)


class _Expanded(NamedTuple):
    rule: Rule
    module: Any

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Expand the latents as the stock module does."""
        keys, values = self.module.expand_kv(keys, values)
        return self.rule.attend(query, keys, values, mask)


def _with_scale(rule: Rule, query: Tensor) -> Rule:
    """Return the rule with the scale of the model's own queries, which are narrower than absorbed ones."""
    return rule if rule.scale is not None else rule._replace(scale=query.shape[-1] ** -0.5)


def _is_plain(linear: Any) -> bool:
    """Return True if a layer only multiplies by its weight: no quantised one, no adapter, no hook."""
    return (
        type(linear) in _PLAIN
        and type(linear.weight) is nn.Parameter
        and linear.weight.is_floating_point()
        and linear.bias is None
        and not (linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear))
    )
