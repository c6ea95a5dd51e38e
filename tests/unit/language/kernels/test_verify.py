"""Another way of computing steps is compared with the model by its logits and by the states that it leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from ts_stateful.language.kernels.verify import verify_choices, verify_steps
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Rows

LAYOUT = KVLayout((LayerShape(2, 8, 8), LayerShape(2, 8, 8)), torch.float32)


def step(rows: Rows, seen: int | None = None, shift: int = 0) -> Tensor:
    """Write a state for every token; logits are sums over the last `seen` tokens up to it."""
    logits = []
    ids = iter(rows.ids)
    for span in rows.spans:
        kv = span.kv
        for position in range(span.start, span.stop):
            token = next(ids)
            for part in kv.states:
                part[:, position + shift] = token / 100
            first = 0 if seen is None else max(0, position + 1 - seen)
            logits.append(torch.stack([part[:, first : position + 1].sum() for part in kv.states]))
        kv.length = span.stop
    return torch.stack(logits)


def other(rows: Rows, seen: int | None = None, shift: int = 0) -> Tensor:
    """The same, but the caller counts."""
    lengths = [span.kv.length for span in rows.spans]
    logits = step(rows, seen, shift)
    for span, length in zip(rows.spans, lengths, strict=True):
        span.kv.length = length
    return logits


def test_what_computes_the_same_agrees() -> None:
    """The result is empty."""
    assert verify_steps(step, other, LAYOUT, [None, None], 100) == ""


def test_only_tokens_of_the_vocabulary_are_used() -> None:
    """Vocabularies may be small."""
    used = set()

    def counted(rows: Rows) -> Tensor:
        used.update(rows.ids)
        return step(rows)

    assert verify_steps(counted, other, LAYOUT, [None, None], 11) == ""
    assert used <= set(range(11))


def test_logits_that_differ_are_found() -> None:
    """NaN and missing logits count as different."""
    assert "logits" in verify_steps(
        step, lambda rows: other(rows) * 1.001, LAYOUT, [None, None], 100
    )
    assert "logits" in verify_steps(
        step, lambda rows: other(rows) * torch.nan, LAYOUT, [None, None], 100
    )
    assert verify_steps(step, lambda _: None, LAYOUT, [None, None], 100)


def test_bfloat16_differs_by_little_on_average() -> None:
    """Single numbers of trained models are rounded by more than the average shows."""

    def rounded(rows: Rows) -> Tensor:
        return step(rows).bfloat16()

    def scaled(rows: Rows, scale: float) -> Tensor:
        return other(rows).bfloat16() * scale

    windows = [None, None]
    assert not verify_steps(rounded, lambda rows: scaled(rows, 1.03), LAYOUT, windows, 100)
    assert "logits" in verify_steps(rounded, lambda rows: scaled(rows, 1.08), LAYOUT, windows, 100)


def test_states_in_other_places_are_found() -> None:
    """Even if no step has read them yet."""

    def late(rows: Rows) -> Tensor:
        found = other(rows)
        for span in rows.spans:
            span.kv.states[-1][:, span.start] += 0.01
        return found

    assert "differ" in verify_steps(step, late, LAYOUT, [None, None], 100)


def test_a_window_is_looked_beyond() -> None:
    """Some of the sessions are longer than the window."""

    def windowed(rows: Rows) -> Tensor:
        return step(rows, 700)

    assert verify_steps(windowed, lambda rows: other(rows, 700), LAYOUT, [700, 700], 100) == ""
    assert "logits" in verify_steps(windowed, other, LAYOUT, [700, 700], 100)


def test_sessions_begin_with_states_that_the_model_could_write() -> None:
    """From others, layers of trained models make much of rounding errors."""

    def rounds(rows: Rows) -> Tensor:
        known = [part[:, : span.start] for span in rows.spans for part in span.kv.states]
        is_usual = all(bool((part.abs() < 3).all()) for part in known)
        return other(rows) * (1 if is_usual else 1.001)

    assert verify_steps(step, rounds, LAYOUT, [None, None], 100) == ""


def test_embeddings_of_other_ids_are_looked_at() -> None:
    """As of a model that takes those of images; what ignores them differs."""

    def embed(ids: Tensor) -> Tensor:
        return ids[..., None].float()

    def given(rows: Rows) -> Rows:
        if rows.embedded is None:
            return rows
        return rows._replace(ids=[int(token) for token in rows.embedded.flatten()])

    def reads(rows: Rows) -> Tensor:
        return step(given(rows))

    assert not verify_steps(
        reads, lambda rows: other(given(rows)), LAYOUT, [None, None], 100, embed=embed
    )
    assert "differ" in verify_steps(reads, other, LAYOUT, [None, None], 100, embed=embed)

    def added(rows: Rows) -> Tensor:
        return reads(rows) if rows.deepstack is None else reads(rows) + rows.deepstack.mean()

    assert not verify_steps(added, added, LAYOUT, [None, None], 100, embed=embed)
    assert "differ" in verify_steps(added, reads, LAYOUT, [None, None], 100, embed=embed)


def test_few_other_choices_of_experts_are_rounding() -> None:
    """If most tokens have other logits, it is a defect."""

    def differs(rows: Rows, num_others: int) -> Tensor:
        found = other(rows)
        found[:num_others] *= 2
        return found

    assert not verify_choices(step, lambda rows: differs(rows, 11), LAYOUT, 100)
    assert "choose" in verify_choices(step, lambda rows: differs(rows, 12), LAYOUT, 100)
    assert verify_choices(step, lambda _: None, LAYOUT, 100)
