"""Choice of tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ts_stateful.language.network.choices import find_choices
from ts_stateful.language.network.sampler import SamplingRow, keys_of, sample

KERNEL = find_choices(torch.device("cpu")).draw_rows


def logits(rows: int = 1, vocabulary: int = 20, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def test_greedy_takes_the_highest() -> None:
    """Temperature 0 is argmax, with any other settings."""
    given_logits = logits(3)
    rows = [SamplingRow(), SamplingRow(top_k=5, top_p=0.5), SamplingRow(seed=9)]
    assert sample(given_logits, rows) == given_logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_logits_the_first_is_taken(dtype: torch.dtype) -> None:
    """As `generate` does, also among many and beside infinite ones."""
    equal = torch.zeros(3, 1000, dtype=dtype)
    equal[1, [700, 300]] = 1.0
    equal[2] = -torch.inf
    assert sample(equal, [SamplingRow()] * 3) == equal.argmax(-1).tolist() == [0, 300, 0]


def number(row: SamplingRow, token: int) -> float:
    """The random number of a token, between 0 and 1: MurmurHash3's finalizer with two keys."""

    def mixed(x: int) -> int:
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = (x ^ x >> shift) * factor % 2**32
        return x ^ x >> 16

    first, second = keys_of(row.seed, row.position)
    return (mixed(mixed((token * 0x9E3779B1 + first) % 2**32) ^ second) + 0.5) / 2**32


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31))
def test_keys_have_32_bits_and_repeat(seed: int, position: int) -> None:
    """They are a function of their arguments alone."""
    keys = keys_of(seed, position)
    assert all(0 <= key < 2**32 for key in keys)
    assert keys_of(seed, position) == keys


def test_numbers_are_uniform() -> None:
    """Over seeds, positions and tokens, each tenth gets its share."""
    count = 5000
    for numbers in (
        [number(SamplingRow(seed=seed), 3) for seed in range(count)],
        [number(SamplingRow(seed=1, position=position), 3) for position in range(count)],
        [number(SamplingRow(seed=1), token) for token in range(count)],
    ):
        counts = Counter(int(number * 10) for number in numbers)
        assert all(400 < counts[tenth] < 600 for tenth in range(10))


def test_draws_follow_the_distribution() -> None:
    """Frequencies approach the softmax at the given temperature."""
    given_logits = logits(vocabulary=6)
    count = 6000
    rows = [SamplingRow(temperature=0.7, seed=seed) for seed in range(count)]
    frequencies = Counter(sample(given_logits.expand(count, -1), rows))
    expected = (given_logits[0].double() / 0.7).softmax(-1)
    for token, probability in enumerate(expected.tolist()):
        assert frequencies[token] / count == pytest.approx(probability, abs=0.03)


def expected_draw(logits: torch.Tensor, row: SamplingRow) -> int:
    """Return what is drawn from one row: by all of its tokens, sorted."""
    order = (-logits.double().numpy()).argsort(kind="stable")
    ordered = logits.double().numpy()[order]
    probabilities = np.exp((ordered - ordered[0]) / row.temperature)
    if row.top_k:
        probabilities[row.top_k :] = 0
    mass = probabilities.sum()
    before = probabilities.cumsum() - probabilities
    probabilities[before >= row.top_p * mass] = 0
    probabilities[probabilities < row.min_p * probabilities[0]] = 0
    numbers = np.array([number(row, token) for token in order.tolist()])
    with np.errstate(divide="ignore"):
        return int(order[(-np.log1p(-numbers) / probabilities).argmin()])


@given(
    spread=st.sampled_from([0.0, 0.3, 2.0, 8.0, 60.0]),
    allowed=st.sampled_from([1, 3, 200, 900, 2000]),
    step=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 999),
    settings=st.lists(
        st.builds(
            SamplingRow,
            temperature=st.sampled_from([0.05, 0.7, 1.0, 2.0]),
            top_k=st.sampled_from([0, 0, 1, 40, 255, 256, 257, 700, 2000, 5000]),
            top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-6]),
            min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
            seed=st.integers(0, 999),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_few_sorted_logits_give_what_all_would(
    spread: float, allowed: int, step: float, seed: int, settings: list[SamplingRow]
) -> None:
    """For peaked and flat distributions, equal logits, few allowed tokens, and any settings in any batch."""
    given_logits = logits(len(settings), 2005, seed) * spread / 2
    if step:
        given_logits = (given_logits / step).round() * step
    shuffled = torch.randperm(2005, generator=torch.Generator().manual_seed(seed))
    given_logits[:, shuffled[allowed:]] = -torch.inf
    expected = [expected_draw(*pair) for pair in zip(given_logits, settings, strict=True)]
    assert sample(given_logits, settings) == expected
    assert sample(given_logits, settings, KERNEL) == expected


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("places", [slice(None), slice(3), slice(-1, None)])
def test_the_kernel_leaves_strange_logits_to_torch(strange: float, places: slice) -> None:
    """A defective model gets any token, the same one, and the other rows get theirs."""
    given_logits = logits(3, 100)
    given_logits[1, places] = strange
    rows = [SamplingRow(temperature=temperature, seed=7) for temperature in (1e-300, 0.7, 2.0)]
    assert sample(given_logits, rows, KERNEL) == sample(given_logits, rows)


def test_logits_that_differ_a_little_draw_the_same_token() -> None:
    """Guesses are made by such logits: rounding must cost few of them, at any temperature."""
    given_logits, count = logits(vocabulary=2000), 400
    rounded = given_logits + 0.02 * logits(vocabulary=2000, seed=1)
    rows = [SamplingRow(1.0, seed=seed) for seed in range(count)]
    drawn = [sample(some.expand(count, -1), rows, KERNEL) for some in (given_logits, rounded)]
    assert sum(one == other for one, other in zip(*drawn, strict=True)) > 0.9 * count


def test_logits_that_are_no_numbers_disturb_no_other_row() -> None:
    """A model that gives them is broken; the token is any one."""
    broken = logits(2, 2000)
    broken[0, 7] = torch.nan
    whole, rows = broken[1:], [SamplingRow(1.0, seed=1), SamplingRow(1.0, seed=2)]
    assert sample(broken, rows)[1] == sample(whole, rows[1:])[0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 5e-324])
def test_very_low_temperatures_take_the_likeliest(temperature: float) -> None:
    """A temperature may be lower than any number of 32 bits."""
    given_logits = logits(2, 2000)
    rows = [SamplingRow(temperature, seed=1), SamplingRow(temperature, top_p=0.5, seed=2)]
    assert sample(given_logits, rows) == given_logits.argmax(dim=-1).tolist()


def test_top_k_and_top_p_bound_the_choice() -> None:
    """Nothing outside the k best, or after the smallest head of mass p, is ever drawn."""
    given_logits = logits()
    order = given_logits[0].argsort(descending=True).tolist()
    count = 500
    many = given_logits.expand(count, -1)
    drawn = sample(many, [SamplingRow(5.0, top_k=3, seed=seed) for seed in range(count)])
    assert set(drawn) == set(order[:3])
    cumulative = given_logits[0].softmax(-1)[order].cumsum(-1)
    head = int((cumulative < 0.6).sum()) + 1
    drawn = sample(many, [SamplingRow(1.0, top_p=0.6, seed=seed) for seed in range(count)])
    assert set(drawn) <= set(order[:head])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Alone or in a batch, greedy or sampled beside it: the same token."""
    batch = logits(4, seed=3)
    rows = [
        SamplingRow(1.0, seed=1, position=7),
        SamplingRow(),
        SamplingRow(0.5, top_k=4, seed=2),
        SamplingRow(2.0, 0, 0.9, 0.05, 3, 1),
    ]
    together = sample(batch, rows)
    alone = [sample(batch[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    assert together == alone


def test_certainty_is_drawn_with_certainty() -> None:
    """A token of all the mass is drawn at any number, also at the ends of the interval."""
    certain = torch.full((50, 5), -1e9)
    certain[:, 3] = 0
    assert sample(certain, [SamplingRow(1.0, seed=seed) for seed in range(50)]) == [3] * 50


@pytest.mark.parametrize("settings", [(0.7, 0, 1.0, 0.2), (1.3, 7, 0.9, 0.1), (1.0, 0, 0.8, 0.0)])
def test_the_support_is_that_of_the_librarys_warpers(
    settings: tuple[float, int, float, float],
) -> None:
    """Exactly the tokens that transformers leaves are drawn, about as often as it would."""
    temperature, top_k, top_p, min_p = settings
    given_logits, count = logits(vocabulary=12, seed=5), 20_000
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    expected = warpers(torch.zeros(1, 1, dtype=torch.long), given_logits.clone())[0].softmax(-1)
    rows = [SamplingRow(*settings, seed=seed) for seed in range(count)]
    drawn = Counter(sample(given_logits.expand(count, -1), rows))
    for token, probability in enumerate(expected.tolist()):
        assert drawn[token] / count == pytest.approx(probability, abs=0.02)
        assert (drawn[token] == 0) == (probability == 0)
