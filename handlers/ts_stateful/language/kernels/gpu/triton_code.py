"""The attention of single tokens of many sessions, and the writing of their states, in Triton's language.

Each session's states are read in place, by address, up to its length: no session is padded or copied. Several programs share a
row's tokens, and a second kernel joins their partial results (flash decoding, https://pytorch.org/blog/flash-decoding/). So
one long session alone keeps the device busy too. `table` is `spans.Table`. Kernels compile again only for other dimensions,
dtypes and flags, never for other numbers of tokens, rows or sessions. Triton would evaluate annotations, so only its own stand.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["attend_kernel", "follow", "join_kernel", "locate", "states_at", "write_kernel"]

_LOG2_E = tl.constexpr(1.4426950408889634)  # exp2 is what the hardware has
_VARYING = ["num_tokens", "num_rows", "num_spans", "layer", "window"]
_STRIDES = ["key_head_stride", "key_token_stride", "value_head_stride", "value_token_stride"]


@triton.jit
def follow(EARLY: tl.constexpr):
    """Wait for the kernel before this one, if it was launched while that ran, and let the next one be launched."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def states_at(address, STATE: tl.constexpr):
    """Return the states whose address is stored at `address`; the alignment allows reads of 16 bytes at once."""
    return tl.multiple_of(tl.load(address).to(tl.pointer_type(STATE)), 16)


@triton.jit
def locate(table, token, head, num_tokens, num_rows, num_spans, layer):
    """Return where the address of a token's keys is stored, and its place in them; that of values is `num_spans` further."""
    span = tl.load(table + token)
    position = tl.load(table + num_tokens + token)
    capacities = table + 2 * num_tokens + num_rows
    addresses = capacities + num_spans + 2 * num_spans * layer + span
    return addresses, head * tl.load(capacities + span) + position  # int64


@triton.jit(do_not_specialize=[*_VARYING, *_STRIDES])
def write_kernel(
    keys,  # (heads, num_tokens, KEY_DIM), by strides; so `values`
    values,
    table,
    num_tokens,
    num_rows,
    num_spans,
    layer,
    key_head_stride,
    key_token_stride,
    value_head_stride,
    value_token_stride,
    STATE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Write one head of one token."""
    follow(EARLY)
    token = tl.program_id(0)
    head = tl.program_id(1)
    addresses, place = locate(table, token, head, num_tokens, num_rows, num_spans, layer)

    dims = tl.arange(0, KEY_BLOCK)
    source = keys + head * key_head_stride + token * key_token_stride
    key = tl.load(source + dims, mask=dims < KEY_DIM)
    target = states_at(addresses, STATE) + place * KEY_DIM
    tl.store(target + dims, key.to(STATE), mask=dims < KEY_DIM)

    dims = tl.arange(0, VALUE_BLOCK)
    source = values + head * value_head_stride + token * value_token_stride
    value = tl.load(source + dims, mask=dims < VALUE_DIM)
    target = states_at(addresses + num_spans, STATE) + place * VALUE_DIM
    tl.store(target + dims, value.to(STATE), mask=dims < VALUE_DIM)


@triton.jit
def _tokens_of(position, window, num_splits, TILE: tl.constexpr):
    """Return a row's first visible token, its number of visible tokens, and the share of a split."""
    first = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
    count = position + 1 - first
    return first, count, tl.cdiv(tl.cdiv(count, TILE), num_splits) * TILE


@triton.jit(do_not_specialize=[*_VARYING, "query_head_stride", "query_token_stride"])
def attend_kernel(
    query,  # (heads, num_tokens, KEY_DIM), by strides
    partial,  # (num_rows, heads, splits, VALUE_DIM) float32: the mean over a split's tokens
    weight,  # (num_rows, heads, splits) float32: log2 of the split's sum of exponentials
    table,
    num_tokens,
    num_rows,
    num_spans,
    layer,
    window,  # 0: none
    query_head_stride,
    query_token_stride,
    scale,
    softcap,  # 0: none
    STATE: tl.constexpr,
    PRODUCT: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share keys
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend with the query heads of one key head of one row to this program's share of the row's tokens."""
    follow(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    token = tl.load(table + 2 * num_tokens + row)
    span = tl.load(table + token)
    position = tl.load(table + num_tokens + token)
    first, count, share = _tokens_of(position, window, num_splits, TILE)
    begin = split * share
    if begin >= count:
        return
    num_keys = tl.minimum(count - begin, share).to(tl.int32)

    capacities = table + 2 * num_tokens + num_rows
    addresses = capacities + num_spans + 2 * num_spans * layer + span
    place = head * tl.load(capacities + span) + first + begin  # int64
    keys = states_at(addresses, STATE) + place * KEY_DIM
    values = states_at(addresses + num_spans, STATE) + place * VALUE_DIM

    heads = tl.arange(0, GROUP_BLOCK)
    key_dims = tl.arange(0, KEY_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    tokens = tl.arange(0, TILE)
    source = (
        query + token * query_token_stride + (head * GROUP + heads[:, None]) * query_head_stride
    )
    q = tl.load(
        source + key_dims[None, :],
        mask=(heads < GROUP)[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    ).to(PRODUCT)

    highest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    mean = tl.zeros([GROUP_BLOCK, VALUE_BLOCK], tl.float32)
    for at in range(0, num_keys, TILE):
        inside = at + tokens < num_keys
        k = tl.load(
            keys + (at + tokens)[:, None] * KEY_DIM + key_dims[None, :],
            mask=inside[:, None] & (key_dims < KEY_DIM)[None, :],
            other=0.0,
        ).to(PRODUCT)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            # tanh, which the language lacks
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        scores = tl.where(inside[None, :], scores * _LOG2_E, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        v = tl.load(
            values + (at + tokens)[:, None] * VALUE_DIM + value_dims[None, :],
            mask=inside[:, None] & (value_dims < VALUE_DIM)[None, :],
            other=0.0,
        ).to(PRODUCT)
        total = total * shrink + tl.sum(weights, axis=1)
        mean = mean * shrink[:, None] + tl.dot(weights.to(PRODUCT), v, input_precision="ieee")
        highest = higher

    num_heads = GROUP * tl.num_programs(1)
    slots = (row * num_heads + head * GROUP + heads) * num_splits + split
    tl.store(weight + slots, highest + tl.log2(total), mask=heads < GROUP)
    tl.store(
        partial + slots[:, None] * VALUE_DIM + value_dims[None, :],
        mean / total[:, None],
        mask=(heads < GROUP)[:, None] & (value_dims < VALUE_DIM)[None, :],
    )


@triton.jit(do_not_specialize=["num_tokens", "window", "num_splits"])
def join_kernel(
    partial,
    weight,
    output,  # (num_tokens, heads, VALUE_DIM)
    sinks,  # (heads,)
    table,
    num_tokens,
    window,
    num_splits,
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SINKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Join the splits of one head of one row."""
    follow(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    token = tl.load(table + 2 * num_tokens + row)
    position = tl.load(table + num_tokens + token)
    _, count, share = _tokens_of(position, window, num_splits, TILE)
    slot = (row * num_heads + head) * num_splits
    dims = tl.arange(0, VALUE_BLOCK)
    highest = tl.load(weight + slot)
    total = tl.full([], 1.0, tl.float32)
    mean = tl.load(partial + slot * VALUE_DIM + dims, mask=dims < VALUE_DIM, other=0.0)
    for split in range(1, tl.cdiv(count, share)):
        score = tl.load(weight + slot + split)
        higher = tl.maximum(highest, score)
        shrink = tl.exp2(highest - higher)
        part = tl.exp2(score - higher)
        total = total * shrink + part
        more = tl.load(
            partial + (slot + split) * VALUE_DIM + dims, mask=dims < VALUE_DIM, other=0.0
        )
        mean = mean * shrink + more * part
        highest = higher
    if SINKS:  # a key without a value takes weight and adds nothing
        score = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        higher = tl.maximum(highest, score)
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.exp2(score - higher)
        mean = mean * shrink
    target = output + (token * num_heads + head) * VALUE_DIM + dims
    tl.store(target, (mean / total).to(output.dtype.element_ty), mask=dims < VALUE_DIM)
