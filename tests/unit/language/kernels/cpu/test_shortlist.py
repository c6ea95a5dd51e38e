"""The outputs that decide on the next token are those of the layer, whatever its weights are."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.support.kernels import language_kernels
from ts_stateful.language.kernels.cpu import rounded, shortlist
from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.cpu.rounded import Rounded
from ts_stateful.language.kernels.cpu.shortlist import Shortlist
from ts_stateful.language.network.sampler import SamplingRow, sample

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
# Of inputs and of weights.
DTYPES = (
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.bfloat16),
)


def make(
    change: Callable[[Tensor], object] = lambda weights: None,
    *,
    outputs: int = 3003,
    bias: bool = False,
    dtypes: tuple[torch.dtype, torch.dtype] = DTYPES[0],
) -> tuple[CompiledLinear, Shortlist | None]:
    """Return a layer of random weights, changed in place by `change`, and its shortlist."""
    torch.manual_seed(2)
    linear = nn.Linear(160, outputs, bias=bias)
    nn.init.normal_(linear.weight)
    with torch.no_grad():
        change(linear.weight)
    inputs, weights = dtypes
    linear.weight.data = linear.weight.data.to(weights)
    layer = CompiledLinear(linear.to(inputs), language_kernels(), weights=weights)
    return layer, Shortlist.of(layer, inputs, language_kernels())


def assert_highest(found: Tensor | None, expected: Tensor) -> None:
    assert found is not None
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    torch.testing.assert_close(found.amax(-1), expected.amax(-1), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 12, 23, 24])
def test_the_highest_outputs_are_those_of_the_layer(
    rows: int, bias: bool, threads: int, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """For outputs that fill no block; most others are estimates. Rounded to bfloat16, several may be the highest."""
    layer, found = make(bias=bias, dtypes=dtypes)
    assert found is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(20):
            inputs = torch.randn(rows, 160).to(dtypes[0])
            # One by one: with several rows the layer adds up in another order.
            expected = torch.cat([layer(row) for row in inputs.split(1)])
            highest = found(inputs, [SamplingRow()] * rows)
            if highest is None:
                assert rows > (8 if dtypes[1] is torch.float32 else 3)
                return
            assert highest.dtype is dtypes[0]
            assert_highest(highest, expected)
            assert (highest == expected).float().mean() < 0.3
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("divisor", [1.0, 8.0])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingRow(1.0),
        SamplingRow(0.3),
        SamplingRow(1e-300),
        SamplingRow(2.0),
        SamplingRow(100.0),
        SamplingRow(1.0, top_k=40, top_p=0.9),
        SamplingRow(1.0, min_p=0.1),
        SamplingRow(0.7, top_k=2, min_p=0.5),
        SamplingRow(0.3, top_p=0.9),
        SamplingRow(0.3, top_p=0.5, min_p=0.1),
        SamplingRow(0.2, top_p=0.99),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_from_all_outputs(
    settings: SamplingRow, divisor: float, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """By the same random numbers, beside a greedy row. Flat distributions may need the layer itself."""
    layer, found = make(dtypes=dtypes)
    assert found is not None
    num_short, chosen = 0, set()
    for seed in range(100):
        inputs = 0.1 * divisor * torch.randn(2, 160).to(dtypes[0])
        rows = [settings._replace(seed=seed), SamplingRow()]
        outputs = found(inputs, rows, divisor)
        found._rest = 0
        if outputs is None:
            continue
        num_short += 1
        expected = torch.cat([layer(row) for row in inputs.split(1)])
        tokens = sample(expected / divisor, rows)
        assert sample(outputs / divisor, rows) == tokens
        assert (outputs == expected).float().mean() < 0.3
        chosen.add(tokens[0])
    has_nucleus = settings.top_p < 1 and not settings.top_k
    if has_nucleus and divisor != 1 and dtypes[0] is torch.bfloat16:
        assert not num_short
        every = settings._replace(top_k=3003)
        assert found(inputs[:1], [every], divisor) is None
    else:
        assert num_short > (30 if has_nucleus else 85)
    assert len(chosen) >= num_short / 3


@torch.inference_mode()
def test_outputs_that_are_nearly_equal_are_told_apart() -> None:
    """Rows of weights differ by less than 8 bits can hold; of equal ones the first is chosen."""

    def change(weights: Tensor) -> None:
        weights[100:140] = 6 * weights[100] + 1e-2 * torch.randn(40, 160)
        weights[140:160] = weights[100:120]

    layer, found = make(change)
    assert found is not None
    chosen = set()
    for _ in range(100):
        inputs = 0.1 * layer.weight[100:101] + torch.randn(1, 160)
        assert_highest(found(inputs, [SamplingRow()]), layer(inputs))
        chosen.add(int(layer(inputs).argmax()))
    assert len(chosen) > 5
    assert max(chosen) < 140


@torch.inference_mode()
def test_rows_of_zeros_and_of_very_large_and_small_weights_are_right() -> None:
    """Each row has a unit and a bound of its own; one large weight makes the unit of all others coarse."""

    def change(weights: Tensor) -> None:
        weights[:50] = 0
        weights[50:100] *= 1e-6
        weights[100:150, 7] = 1000
        weights[150:160] = 1e-42

    layer, found = make(change, outputs=8000)
    assert found is not None
    for sign in (1, -1) * 20:
        inputs = torch.randn(2, 160)
        inputs[0, 7] = 0.01 * sign
        assert_highest(found(inputs, [SamplingRow()] * 2), layer(inputs))
    assert found(torch.zeros(1, 160), [SamplingRow()]) is None  # all are equal


@torch.inference_mode()
@pytest.mark.parametrize(("weight", "value"), [(1e-25, 1.0), (1.0, 1e-25), (1.0, 1e17)])
def test_numbers_whose_squares_are_none_have_no_bounds(weight: float, value: float) -> None:
    """Float32 has no squares of them, so lengths are unknown."""
    _, found = make(lambda weights: weights.mul_(weight))
    assert found is not None
    for _ in range(8):
        assert found(value * torch.randn(1, 160), [SamplingRow()]) is None


@torch.inference_mode()
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_the_last_outputs_are_added_up_as_the_layer_does(
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    """They fill no block."""

    def change(weights: Tensor) -> None:
        weights[-5:] *= 6

    layer, found = make(change, dtypes=dtypes)
    assert found is not None
    num_last = 0
    for _ in range(50):
        inputs = torch.randn(1, 160).to(dtypes[0])
        highest, expected = found(inputs, [SamplingRow()]), layer(inputs)
        assert highest is not None
        assert torch.equal(highest.max(), expected.max())
        num_last += int(expected.argmax() >= 2998)
    assert num_last > 25


@torch.inference_mode()
@pytest.mark.parametrize("step", [0, 1 / 256])
def test_unlikely_tokens_are_rounded_too(step: float) -> None:
    """Their many logits, all rounded upwards, decide where the nucleus ends. Of equal likely ones, it has the first."""

    def change(weights: Tensor) -> None:
        weights[:] = 0
        weights[:46, 0] = -step * torch.arange(46)
        weights[46:, :2] = torch.tensor([-7.5625, 0.009])

    layer, found = make(change, dtypes=(torch.bfloat16, torch.bfloat16))
    assert found is not None
    inputs = torch.zeros(1, 160, dtype=torch.bfloat16)
    inputs[0, :2] = torch.tensor([1.0625, 0.5])
    expected = layer(inputs)
    assert (
        expected[0, 46] == -8
    )  # of -8.0307; the estimate is -8.0352, and would be rounded to -8.0625
    probabilities = expected.double().exp()[0]
    top_p = (
        float(probabilities[:5].sum() / probabilities.sum()) * 1.0002
    )  # so the sixth belongs to it
    chosen, num_short = set(), 0
    for seed in range(100):
        rows = [SamplingRow(1.0, top_p=top_p, seed=seed)]
        chosen.update(sample(expected, rows))
        outputs = found(inputs, rows)
        found._rest = 0
        if outputs is not None:
            num_short += 1
            assert sample(outputs, rows) == sample(expected, rows)
    assert chosen == set(range(6))
    assert num_short > 50


@torch.inference_mode()
def test_the_layer_is_called_while_too_many_outputs_may_be_the_highest() -> None:
    """Then the shortlist rests for some calls, each time more of them, in which it would be tried in vain."""

    def change(weights: Tensor) -> None:
        weights[:] = weights[0] + 1e-3 * torch.randn(weights.shape)

    _, found = make(change)
    assert found is not None
    find, tried, results = found._find, list[int](), list[Tensor | None]()

    def spy(*arguments: object) -> bool:
        tried.append(len(results))
        return find(*arguments)

    found._find = spy
    while len(results) < 1000:
        results.append(found(torch.randn(1, 160), [SamplingRow()]))
    assert results == [None] * 1000
    assert tried == [0, 1, 4, 11, 26, 57, 120, 247, 502, 757]
    found._find, found._rest = lambda *arguments: True, 0
    assert found(torch.randn(1, 160), [SamplingRow()]) is not None
    assert found(torch.randn(25, 160), [SamplingRow()] * 25) is None
    assert found(torch.randn(13, 160), [SamplingRow(0.3, top_p=0.5)] * 13) is None


@pytest.mark.parametrize("weight", [torch.inf, torch.nan])
def test_weights_that_are_no_numbers_have_no_shortlist(
    weight: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing bounds them."""

    def change(weights: Tensor) -> None:
        weights[5, 5] = weight

    assert make(change)[1] is None
    assert "no finite numbers" in caplog.text


@torch.inference_mode()
def test_a_wrong_shortlist_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiler may err."""

    def wrong(weights: Tensor) -> Rounded:
        numbers, units = Rounded.of(weights)
        return Rounded(numbers.flip(0), units)

    monkeypatch.setattr(shortlist, "Rounded", SimpleNamespace(of=wrong))
    monkeypatch.setattr(shortlist, "_bounds", lambda weights, _: torch.zeros(len(weights)))
    assert make()[1] is None
    assert "outputs differ" in caplog.text


def test_weights_are_rounded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces change nothing, and the bounds hold for every row."""
    weights = torch.randn(301, 160) * torch.logspace(-3, 3, 301)[:, None]
    whole = Rounded.of(weights)
    monkeypatch.setattr(rounded, "_AT_ONCE", 1000)
    pieces = Rounded.of(weights)
    assert all(map(torch.equal, whole, pieces))
    errors = shortlist._bounds(weights, pieces).double()
    numbers, units = (part.double() for part in pieces)
    apart = (weights.double() - numbers * units[:, None]).norm(dim=-1)
    assert (apart <= errors).all()
    assert (errors < 0.02 * weights.norm(dim=-1)).all()


def test_layers_that_the_kernels_cannot_read_have_none(caplog: pytest.LogCaptureFixture) -> None:
    """Of inputs that fill no vector; torch's own are read too."""
    caplog.set_level(logging.INFO)
    _, found = make()
    assert found is not None
    assert "8 bits a weight" in caplog.text
    assert Shortlist.of(nn.Linear(160, 3003), torch.float32, language_kernels()) is not None
    assert Shortlist.of(nn.Linear(150, 3003), torch.float32, language_kernels()) is None
