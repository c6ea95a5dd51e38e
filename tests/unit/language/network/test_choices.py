"""The compiled kernels choose what torch and numpy choose, and are not used where they do not."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ts_stateful.cpu_kernels.build import cache_folder, load_library
from ts_stateful.language.grammar.matcher import forbid
from ts_stateful.language.kernels.cpu.library import functions_for
from ts_stateful.language.network import choices
from ts_stateful.language.network.choices import ChoiceKernels, find_choices

CPU = torch.device("cpu")
FOUND = find_choices(CPU)

needs_kernels = pytest.mark.skipif(FOUND == ChoiceKernels(), reason="no compiled kernels")


@needs_kernels
@given(st.integers(1, 200), st.data())
def test_forbidden_tokens_are_those_of_torch(vocabulary: int, data: st.DataObject) -> None:
    """For any mask and number of tokens, and rows without a mask."""
    words = arrays(np.int32, -(-vocabulary // 32))
    masks: list[NDArray[np.int32] | None] = data.draw(
        st.lists(st.none() | words, min_size=1, max_size=5)
    )
    logits = torch.randn(len(masks), vocabulary, generator=torch.Generator().manual_seed(0))
    found, expected = forbid(logits, masks, FOUND.forbid_rows), forbid(logits, masks)
    assert torch.equal(found, expected)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_given_logits_stay_as_they_are(dtype: torch.dtype) -> None:
    """Also of 16 bits, and rows that are not neighbors in memory; what is no number and allowed stays none."""
    logits = torch.randn(100, 4).to(dtype).T
    logits[0, :2] = torch.nan
    before = logits.clone()
    masks = [np.array([5, 0, 0, 7], np.int32), None, np.full(4, -1, np.int32), None]
    found, expected = forbid(logits, masks, FOUND.forbid_rows), forbid(logits, masks)
    torch.testing.assert_close(found[:, 2:], expected[:, 2:], rtol=0, atol=0)
    assert found[0, 0].isnan()
    assert found[0, 1] == -torch.inf
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


@needs_kernels
@pytest.mark.parametrize("name", ["draw_rows", "forbid_rows"])
def test_a_kernel_that_chooses_others_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one is."""

    def clear(*arguments: int) -> None:
        """Write zeros: the first token of every row, or logits that are all allowed."""
        ctypes.memset(arguments[-1], 0, 8 * arguments[1])

    library = load_library(cache_folder(), "language")
    assert library is not None
    right = functions_for(library, torch.float32)
    wrong = SimpleNamespace(draw_rows=right.draw_rows, forbid_rows=right.forbid_rows)
    setattr(wrong, name, clear)
    monkeypatch.setattr(choices, "functions_for", lambda *_: wrong)
    found = find_choices(CPU)
    assert getattr(found, name) is None
    assert found.count(None) == 1
    assert "the compiled kernel" in caplog.text


def test_a_gpu_has_none() -> None:
    """Its tokens are chosen there."""
    assert find_choices(torch.device("cuda")) == ChoiceKernels()
