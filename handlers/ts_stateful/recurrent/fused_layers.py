"""Single steps of LSTM and GRU layers on a CPU: all layers in one call of a compiled kernel.

Programs are TorchScript, exported, or Python; all call torch's operators. So these are replaced in the whole process, for the
weights of programs that were given to `fuse_layers`. Everything else goes on to torch's own code.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from ts_stateful.cpu_kernels.build import cache_folder, is_worthwhile, load_library

__all__ = ["fuse_layers"]

logger = logging.getLogger(__name__)

_GATES: Final = {"lstm": 4, "gru": 3}
_TOLERANCE = 1e-4  # of the largest state
_VERIFIED_ROWS = (1, 7, 32)


class RecurrentFacts(ctypes.Structure):
    """`Recurrent`: the addresses of a layer's packed weights and biases, and its numbers of inputs and units."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("in_", "size")),
    ]


class LayerStack:
    """The layers of one call of an operator, with copies of their weights in the order in which they are read."""

    def __init__(
        self, library: ctypes.CDLL, gates: int, layers: Sequence[Sequence[Tensor]]
    ) -> None:
        self._gates = gates
        self._run = library.step_recurrent
        units = library.recurrent_units()
        packed = [_packed(gates, units, *layer) for layer in layers]
        facts = [
            RecurrentFacts(weight.data_ptr(), bias.data_ptr(), layer[0].shape[1], layer[1].shape[1])
            for layer, (weight, bias) in zip(layers, packed, strict=True)
        ]
        self._kept = packed  # the facts have only addresses
        self._facts = (RecurrentFacts * len(facts))(*facts)

    @staticmethod
    def serves(library: ctypes.CDLL, layers: Sequence[Sequence[Tensor]]) -> bool:
        """Return True if the kernel can compute layers: weights of inputs and of hidden states, and biases if any."""
        size, units = layers[0][1].shape[1], library.recurrent_units()
        return size % units == 0 and all(
            len(layer) in (2, 4) and all(weight.dtype is torch.float32 for weight in layer)
            for layer in layers
        )

    def takes(self, input: Tensor, states: Sequence[Tensor]) -> bool:
        """Return True if these can be computed: `(rows, inputs)`, and states of `(layers, rows, units)`."""
        shape = (len(self._facts), input.shape[0], self._facts[0].size)
        return (
            input.shape[0] > 0
            and input.shape[1] == self._facts[0].in_
            and input.dtype is torch.float32
            and all(each.shape == shape and each.dtype is torch.float32 for each in states)
        )

    def step(self, input: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        """Return the new states: those of the units, and of an LSTM the cells."""
        input, states = input.contiguous(), [each.contiguous() for each in states]
        made = [torch.empty_like(each) for each in states]
        self._run(
            *(self._facts, len(self._facts), self._gates),
            *(input.data_ptr(), states[0].data_ptr(), states[-1].data_ptr()),
            *(input.shape[0], torch.get_num_threads()),
            *(made[0].data_ptr(), made[-1].data_ptr()),
        )
        return made


def _packed(
    gates: int, units: int, inputs: Tensor, hidden: Tensor, *biases: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weights `(blocks, inputs + size, gates, units)` and biases `(blocks, 4, units)` of a layer."""
    size = hidden.shape[1]
    weight = torch.cat([inputs, hidden], 1).view(gates, size // units, units, -1)
    zero = hidden.new_zeros(gates, size)
    first, second = (bias.view(gates, size) for bias in biases) if biases else (zero, zero)
    # The new gate of a GRU multiplies what comes from the hidden states, with its bias.
    sums = (
        [first + second]
        if gates == _GATES["lstm"]
        else [first[:2] + second[:2], first[2:], second[2:]]
    )
    bias = torch.cat(sums).view(4, size // units, units)
    return weight.permute(1, 3, 0, 2).contiguous(), bias.transpose(0, 1).contiguous()


class RecurrentOperators:
    """torch's operators of LSTMs and GRUs, by the kernel where it can compute them for programs that were added."""

    def __init__(self) -> None:
        self._weights: dict[int, Tensor] = {}  # by `id`, which stays theirs
        self._stacks: dict[tuple[int, ...], LayerStack | None] = {}
        self._registered = torch.library.Library("aten", "IMPL")
        operators = torch.ops.aten
        for operator, function in (
            (operators.lstm.input, partial(self._layers, "lstm")),
            (operators.gru.input, partial(self._layers, "gru")),
            (operators.lstm_cell.default, partial(self._cell, "lstm")),
            (operators.gru_cell.default, partial(self._cell, "gru")),
        ):
            self._registered.impl(operator, _or_torch(function, operator), "CPU")
            self._registered.impl(operator, torch.library.fallthrough_kernel, "AutogradCPU")
            self._registered.impl(operator, operator.decompose, "FuncTorchBatched")

    def add(self, module: nn.Module) -> None:
        """Compute the layers of a module, whose parameters must stay as they are."""
        self._weights |= {id(weight): weight for weight in module.parameters()}

    def _cell(
        self, kind: str, input: Tensor, hx: Tensor | Sequence[Tensor], *params: Tensor | None
    ) -> Tensor | tuple[Tensor, ...] | None:
        states = [hx] if isinstance(hx, Tensor) else hx
        made = self._step(kind, input, [each[None] for each in states], [params])
        if made is None:
            return None
        return made[0][0] if isinstance(hx, Tensor) else tuple(each[0] for each in made)

    def _layers(
        self,
        kind: str,
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...] | None:
        time_dim, each = int(batch_first), 4 if has_biases else 2
        is_step = input.dim() == 3 and input.shape[time_dim] == 1
        if not is_step or bidirectional or train or len(params) != each * num_layers:
            return None
        layers = [params[at : at + each] for at in range(0, len(params), each)]
        states = [hx] if isinstance(hx, Tensor) else hx
        made = self._step(kind, input.squeeze(time_dim), states, layers)
        return None if made is None else (made[0][-1].unsqueeze(time_dim).clone(), *made)

    def _step(
        self,
        kind: str,
        input: Tensor,
        states: Sequence[Tensor],
        layers: Sequence[Sequence[Tensor | None]],
    ) -> list[Tensor] | None:
        """Return new states `(layers, rows, units)`; None where torch has to compute them."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return None
        given = [[weight for weight in layer if weight is not None] for layer in layers]
        key = tuple(id(weight) for layer in given for weight in layer)
        if key not in self._stacks:
            if not all(each in self._weights for each in key):
                return None
            self._stacks[key] = self._stack(kind, given)
        stack = self._stacks[key]
        if stack is None or not stack.takes(input, states):
            return None
        return stack.step(input, states)

    def _stack(self, kind: str, layers: Sequence[Sequence[Tensor]]) -> LayerStack | None:
        """Return the kernel's layers if they can be computed and agree with torch's."""
        library = _library()
        if library is None or not LayerStack.serves(library, layers):
            return None
        stack = LayerStack(library, _GATES[kind], layers)
        apart = max(_difference(stack, kind, layers, num_rows) for num_rows in _VERIFIED_ROWS)
        facts = (kind.upper(), len(layers), layers[0][1].shape[1])
        if not apart <= _TOLERANCE:
            logger.warning(
                "%s (layers: %d, units: %d) stays torch's: fused, it differs by %.2g", *facts, apart
            )
            return None
        logger.info("%s (layers: %d, units: %d) is fused", *facts)
        return stack


@torch.no_grad()
def _difference(
    stack: LayerStack, kind: str, layers: Sequence[Sequence[Tensor]], num_rows: int
) -> float:
    """Return the largest difference from torch's new states, relative to the largest of them."""
    generator, (inputs, hidden, *biases) = torch.Generator().manual_seed(0), layers[0]
    input = torch.randn(num_rows, inputs.shape[1], generator=generator)
    states = [
        torch.randn(len(layers), num_rows, hidden.shape[1], generator=generator)
        for _ in range(2 if kind == "lstm" else 1)
    ]
    operator = getattr(torch.ops.aten, kind).input
    params = [weight for layer in layers for weight in layer]
    facts = (bool(biases), len(layers), 0.0, False, False, False)
    _, *expected = operator.decompose(
        input[None], states if kind == "lstm" else states[0], params, *facts
    )
    return max(
        float((found - right).abs().max() / right.abs().max())
        for found, right in zip(stack.step(input, states), expected, strict=True)
    )


def _or_torch(function: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    """Return an implementation of an operator that torch computes where `function` returns None."""

    def compute(*args: Any) -> Any:
        made = function(*args)
        return operator.decompose(*args) if made is None else made

    return compute


@cache
def _library() -> ctypes.CDLL | None:
    """Return the library, declared; None without a compiler."""
    library = load_library(cache_folder(), "recurrent")
    if library is not None:
        word, address = ctypes.c_int64, ctypes.c_void_p
        library.recurrent_units.restype = word
        library.step_recurrent.restype = None
        library.step_recurrent.argtypes = [
            *(address, word, word, address, address, address, word, word, address, address)
        ]
    return library


_operators = cache(RecurrentOperators)  # of the process


def fuse_layers(module: nn.Module, device: torch.device) -> None:
    """Compute single steps of a module's LSTM and GRU layers in float32 in one call each, where that is faster.

    Its parameters must stay as they are: the weights are copied at the first step.
    """
    if is_worthwhile(device, torch.float32):
        _operators().add(module)
