"""Decoder layers of few rows in Triton's language: products with all that stands between them.

A step of few rows is bound by reading weights, and by the launches of the thirty operators of a stock layer. So a product
normalizes its inputs itself, and activates, or adds its outputs to the hidden states. All sums are float32. `num_rows` never
makes a kernel compile again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ts_stateful.language.kernels.gpu.triton_code import follow, locate, states_at

__all__ = ["GELU", "SILU", "norm_kernel", "project_kernel", "turn_kernel"]

SILU, GELU = 1, 2
_SILU = tl.constexpr(SILU)


@triton.jit
def _activated(gate, up, ACTIVATION: tl.constexpr):
    if ACTIVATION == _SILU:
        return gate * tl.sigmoid(gate) * up
    # GELU by tanh, which the language lacks: (1 + tanh z) / 2 is sigmoid(2 z).
    z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(2.0 * z) * up


@triton.jit
def _tile(weights, outputs, at, k, num_inputs, EVEN: tl.constexpr):
    """Return weights `(outputs, inputs)` of some outputs, from input `at` on."""
    places = weights + outputs[:, None].to(tl.int64) * num_inputs + (at + k)[None, :]
    if EVEN:
        return tl.load(places)
    return tl.load(places, mask=(at + k < num_inputs)[None, :], other=0.0)


@triton.jit(do_not_specialize=["num_rows"])
def project_kernel(
    inputs,  # (rows, num_inputs): float32 hidden states with NORM, which is for one row
    scales,  # (num_inputs,): the norm's weights
    weights,  # (num_outputs, num_inputs), twice as many outputs with ACTIVATION: the gate's, then the others
    biases,  # one for each of them
    outputs,  # (rows, num_outputs)
    num_rows,
    num_outputs,
    num_inputs,
    epsilon,
    offset,  # of the norm's weights
    factor,  # of what is added
    ROWS: tl.constexpr,  # a power of two, from 16 on, or 1
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    EVEN: tl.constexpr,  # if INPUTS divides num_inputs
    PRODUCT: tl.constexpr,
    NORM: tl.constexpr,
    BIASED: tl.constexpr,
    ACTIVATION: tl.constexpr,  # 0: none
    ADDS: tl.constexpr,  # to `outputs`, which are float32
    EARLY: tl.constexpr,
):
    """Compute some outputs of all rows."""
    follow(EARLY)
    place = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    some = tl.minimum(place, num_outputs - 1)
    k = tl.arange(0, INPUTS)
    rows = tl.arange(0, ROWS)
    if ROWS == 1:
        sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
        others = tl.zeros([OUTPUTS, INPUTS], tl.float32)
        squares = tl.zeros([INPUTS], tl.float32)
    else:
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        others = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for at in range(0, num_inputs, INPUTS):
        inside = at + k < num_inputs
        w = _tile(weights, some, at, k, num_inputs, EVEN)
        if ACTIVATION:
            v = _tile(weights, some + num_outputs, at, k, num_inputs, EVEN)
        if ROWS == 1:
            x = tl.load(inputs + at + k, mask=inside, other=0.0).to(tl.float32)
            if NORM:
                squares += x * x
                x *= tl.load(scales + at + k, mask=inside, other=0.0).to(tl.float32) + offset
            sums += w.to(tl.float32) * x[None, :]
            if ACTIVATION:
                others += v.to(tl.float32) * x[None, :]
        else:
            x = tl.load(
                inputs + rows[None, :] * num_inputs + (at + k)[:, None],
                mask=(rows < num_rows)[None, :] & inside[:, None],
                other=0.0,
            )
            x = x.to(PRODUCT)
            sums = tl.dot(w.to(PRODUCT), x, sums, input_precision="ieee")
            if ACTIVATION:
                others = tl.dot(v.to(PRODUCT), x, others, input_precision="ieee")
    if ROWS == 1:
        found = tl.sum(sums, axis=1)[:, None]
        other = tl.sum(others, axis=1)[:, None]
        if NORM:
            root = tl.rsqrt(tl.sum(squares, axis=0) / num_inputs + epsilon)
            found *= root
            other *= root
    else:
        found, other = sums, others
    if BIASED:
        found += tl.load(biases + some).to(tl.float32)[:, None]
        if ACTIVATION:
            other += tl.load(biases + some + num_outputs).to(tl.float32)[:, None]
    if ACTIVATION:
        found = _activated(found, other, ACTIVATION)
    targets = outputs + rows[None, :] * num_outputs + place[:, None]
    wanted = (rows < num_rows)[None, :] & (place < num_outputs)[:, None]
    if ADDS:
        found = tl.load(targets, mask=wanted, other=0.0) + factor * found
    tl.store(targets, found.to(outputs.dtype.element_ty), mask=wanted)


@triton.jit
def norm_kernel(
    inputs,  # (rows, size)
    scales,  # (size,)
    outputs,  # (rows, size); float32 with ADDS
    size,
    epsilon,
    offset,
    factor,  # of what is added
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Divide a row by its root mean square and multiply it by a norm's weights; return it, or add it to the outputs."""
    follow(EARLY)
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(inputs + row * size + at, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(x * x, axis=0) / size + epsilon)
    scale = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32) + offset
    target = outputs + row * size + at
    x *= root * scale
    if ADDS:
        x = tl.load(target, mask=inside, other=0.0) + factor * x
    tl.store(target, x.to(outputs.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "num_spans", "layer"])
def turn_kernel(
    projected,  # (rows, heads, DIM): those of queries, keys and values
    cosines,  # (rows, TURNED); so `sines`
    sines,
    scales,  # (2, DIM): the norms of queries and of keys
    queries,  # (rows, HEADS, DIM)
    table,  # of rows that are all tokens
    num_rows,
    num_spans,
    layer,
    epsilon,
    offset,
    STATE: tl.constexpr,
    HEADS: tl.constexpr,  # of queries
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    TURNED: tl.constexpr,  # dimensions that are rotated
    NEIGHBORS: tl.constexpr,  # rotate a dimension with the next one, not with the one half of TURNED away
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Normalize and rotate one head of one token; write a key or a value to its session's states."""
    follow(EARLY)
    token = tl.program_id(0)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    inside = dims < DIM
    source = projected + (token * (HEADS + 2 * KEY_HEADS) + head) * DIM
    x = tl.load(source + dims, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KEY_HEADS:
        if NEIGHBORS:
            partner = dims ^ 1
            sign = tl.where(dims % 2 == 0, -1.0, 1.0)
        else:
            partner = tl.where(dims < TURNED // 2, dims + TURNED // 2, dims - TURNED // 2)
            sign = tl.where(dims < TURNED // 2, -1.0, 1.0)
        turns = dims < TURNED
        other = tl.load(source + partner, mask=turns, other=0.0).to(tl.float32)
        if NORM:
            root = tl.rsqrt(tl.sum(x * x, axis=0) / DIM + epsilon)
            scale = scales + tl.where(head < HEADS, 0, DIM)
            x *= root * (tl.load(scale + dims, mask=inside, other=0.0).to(tl.float32) + offset)
            other *= root * (
                tl.load(scale + partner, mask=turns, other=0.0).to(tl.float32) + offset
            )
        cosine = tl.load(cosines + token * TURNED + dims, mask=turns, other=1.0).to(tl.float32)
        sine = tl.load(sines + token * TURNED + dims, mask=turns, other=0.0).to(tl.float32)
        x = x * cosine + sign * other * sine
    if head < HEADS:
        target = queries + (token * HEADS + head) * DIM
        tl.store(target + dims, x.to(queries.dtype.element_ty), mask=inside)
    else:
        is_value = (head - HEADS) // KEY_HEADS
        key_head = (head - HEADS) % KEY_HEADS
        keys, place = locate(table, token, key_head, num_rows, num_rows, num_spans, layer)
        states = states_at(keys + is_value * num_spans, STATE)
        tl.store(states + place * DIM + dims, x.to(STATE), mask=inside)
