"""All decoder layers of a step of few rows by Triton kernels, on a stock network's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
from torch import Tensor

from ts_stateful.language.kernels.decoder_layout import Decoder, UnknownDecoderError
from ts_stateful.language.kernels.gpu.cuda_graphs import RowInputs
from ts_stateful.language.kernels.gpu.decoder_code import norm_kernel, project_kernel, turn_kernel
from ts_stateful.language.kernels.gpu.decoder_layers import DecoderLayer, Linear, Norm
from ts_stateful.language.kernels.gpu.triton import TritonKernels
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Table

__all__ = ["MOST_ROWS", "FusedDecoder"]

MOST_ROWS: Final = 32  # with more, cuBLAS computes them in less time
# Hidden states that are not yet normalized overflow float16.
_DTYPES: Final = (torch.float32, torch.bfloat16)
_SMALLEST_DOT: Final = 16
_WIDE: Final = 8192  # outputs, whose programs are many, also with larger tiles


class FusedDecoder:
    """The logits of a step of one token for each of at most `MOST_ROWS` rows; nothing in it waits for the device.

    A stock layer is forty launches, and each takes longer than its work. Here it is seven, or nine for several rows, and
    products read their weights at nearly the memory's speed. Hidden states are float32, also in a bfloat16 network. Projections
    of the same inputs are joined, so the network's parameters become parts of larger tensors.

    Raises:
        UnknownDecoderError: the kernels do not support the network's layers.
    """

    def __init__(
        self,
        decoder: Decoder,
        layout: KVLayout,
        windows: Sequence[int | None],
        kernels: TritonKernels,
    ) -> None:
        if layout.dtype not in _DTYPES:
            raise UnknownDecoderError(f"{layout.dtype} is not supported on a GPU")
        if decoder.num_positions is not None:  # which the host would have to look at
            raise UnknownDecoderError("queries that grow with positions are not supported on a GPU")
        self._decoder = decoder
        self._kernels = kernels
        self._layers = [
            DecoderLayer.of(decoder, *each)
            for each in zip(decoder.layers, layout.layers, windows, strict=True)
        ]
        self._shapes = layout.layers
        self._norm = Norm.of(decoder.norm, decoder.norm_offset)
        self._head = Linear.of(decoder.head)

    def __call__(self, inputs: RowInputs) -> Tensor | None:
        """Return logits `(rows, vocabulary)`; None for more than `MOST_ROWS` rows."""
        decoder, table = self._decoder, inputs.table
        if table.num_rows > MOST_ROWS:
            return None
        embedded = decoder.embeddings(inputs.ids)
        turns = decoder.rotary.compute(embedded, inputs.positions)
        hidden = embedded[0].float()
        if decoder.embedding_factor != 1:
            hidden *= decoder.embedding_factor
        for index, layer in enumerate(self._layers):
            projected = self._project(layer.qkv, hidden, layer.norm)
            queries = self._turn(projected, turns, table, index)
            attended = self._kernels.attend(
                queries.transpose(0, 1), table, index, layer.rule, layer.window
            )
            self._add(layer.out, attended.flatten(1), layer.attended_norm, layer.residual, hidden)
            fed = self._project(layer.gate_up, hidden, layer.ffn_norm, layer.activation)
            self._add(layer.down, fed, layer.fed_norm, layer.residual, hidden)
        return decoder.scaled(self._project(self._head, hidden, self._norm))

    def _add(
        self, linear: Linear, inputs: Tensor, norm: Norm | None, factor: float, hidden: Tensor
    ) -> None:
        """Add a layer's outputs to the hidden states, normalized if there is a norm."""
        if norm is None:
            self._launch(linear, inputs, None, 0, hidden, factor, adds=True)
        else:
            self._normalize(self._project(linear, inputs, None), norm, hidden, factor, adds=True)

    def _project(
        self, linear: Linear, inputs: Tensor, norm: Norm | None, activation: int = 0
    ) -> Tensor:
        """Return a layer's outputs for normalized inputs `(rows, inputs)`, activated if it has a gate."""
        if norm is not None and len(inputs) > 1:  # else every program does it by the way
            normed = torch.empty_like(inputs, dtype=linear.weight.dtype)
            self._normalize(inputs, norm, normed, 1.0, adds=False)
            inputs, norm = normed, None
        size = len(linear.weight) // (2 if activation else 1)
        outputs = torch.empty(len(inputs), size, dtype=linear.weight.dtype, device=inputs.device)
        self._launch(linear, inputs, norm, activation, outputs, 1.0, adds=False)
        return outputs

    def _launch(
        self,
        linear: Linear,
        inputs: Tensor,
        norm: Norm | None,
        activation: int,
        outputs: Tensor,
        factor: float,
        *,
        adds: bool,
    ) -> None:
        num_rows, num_inputs = inputs.shape
        num_outputs = outputs.shape[1]
        stage_bytes = self._kernels.shared_bytes // linear.weight.itemsize
        tiles = _tiles(num_rows, num_outputs, num_inputs, 2 if activation else 1, stage_bytes)
        bias = linear.bias
        project_kernel[(triton.cdiv(num_outputs, tiles["OUTPUTS"]),)](
            *(inputs, inputs if norm is None else norm.weight, linear.weight),
            *(inputs if bias is None else bias, outputs, num_rows, num_outputs, num_inputs),
            *((0.0, 0.0) if norm is None else (norm.epsilon, norm.offset)),
            factor,
            **tiles,
            EVEN=num_inputs % tiles["INPUTS"] == 0,
            PRODUCT=self._kernels.product,
            NORM=norm is not None,
            BIASED=bias is not None,
            ACTIVATION=activation,
            ADDS=adds,
            **self._kernels.launch,
        )

    def _normalize(
        self, inputs: Tensor, norm: Norm, outputs: Tensor, factor: float, *, adds: bool
    ) -> None:
        num_rows, size = inputs.shape
        norm_kernel[(num_rows,)](
            *(inputs, norm.weight, outputs, size, norm.epsilon, norm.offset, factor),
            BLOCK=triton.next_power_of_2(size),
            ADDS=adds,
            num_warps=8,
            **self._kernels.launch,
        )

    def _turn(
        self, projected: Tensor, turns: tuple[Tensor, Tensor], table: Table, index: int
    ) -> Tensor:
        """Return rotated queries `(rows, heads, dim)` of a layer, and write keys and values to the sessions' states."""
        layer, shape = self._layers[index], self._shapes[index]
        dim, norm = shape.key_dim, layer.head_norms
        num_heads = projected.shape[1] // dim - 2 * shape.heads
        queries = projected.new_empty(len(projected), num_heads, dim)
        cosines, sines = (
            (projected, projected) if layer.kind is None else (each[layer.kind] for each in turns)
        )
        turn_kernel[(len(projected), num_heads + 2 * shape.heads)](
            *(projected, cosines, sines, projected if norm is None else norm.weight, queries),
            *(table.buffer, table.num_rows, table.num_spans, index),
            *((0.0, 0.0) if norm is None else (norm.epsilon, norm.offset)),
            STATE=self._kernels.state,
            HEADS=num_heads,
            KEY_HEADS=shape.heads,
            DIM=dim,
            TURNED=0 if layer.kind is None else turns[0].shape[-1],
            NEIGHBORS=self._decoder.rotary.neighbors,
            NORM=norm is not None,
            BLOCK=triton.next_power_of_2(dim),
            num_warps=1,
            **self._kernels.launch,
        )
        return queries


def _tiles(
    num_rows: int, num_outputs: int, num_inputs: int, num_weights: int, stage_bytes: int
) -> dict[str, int]:
    """Return the block sizes of a product, which read 85 to 95 % of what an H200's memory can give.

    `stage_bytes` are a program's shared memory over the size of a number.
    """
    most = triton.next_power_of_2(num_inputs)
    if num_rows == 1:
        return {"ROWS": 1, "OUTPUTS": 4, "INPUTS": min(1024, most), "num_warps": 4}
    rows = max(_SMALLEST_DOT, triton.next_power_of_2(num_rows))
    wide = num_outputs >= _WIDE
    outputs, inputs = (64, 128) if wide else (32, 256)
    inputs = max(_SMALLEST_DOT, min(inputs, most))
    stages = 3 if wide and num_weights == 1 else 5
    room = stage_bytes // ((num_weights * outputs + rows) * inputs)
    return {
        "ROWS": rows,
        "OUTPUTS": outputs,
        "INPUTS": inputs,
        "num_warps": 4,
        "num_stages": max(1, min(stages, room)),
    }
