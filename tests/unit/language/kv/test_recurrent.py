"""Recurrent states after several numbers of tokens."""

from __future__ import annotations

import pytest
import torch

from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.recurrent import KEPT, Recurrent

LAYOUT = KVLayout((LayerShape(0, 0, 0), LayerShape(2, 4, 4)), torch.float32, (1, 0), 8)


def states(number: float) -> list[torch.Tensor | None]:
    """Eight bytes; the second state is not used."""
    return [torch.full((1, 2), float(number)), None]


def at(recurrent: Recurrent, length: int) -> float:
    """The number of the states after so many tokens."""
    found = recurrent.after(length)
    assert found is not None
    assert found[0] is not None
    return float(found[0][0, 0])


def filled(*lengths: int) -> KVCache:
    """A session whose states were kept at these lengths."""
    kv = KVCache(LAYOUT, torch.device("cpu"))
    assert kv.recurrent is not None
    for length in lengths:
        kv.reserve(length)
        kv.length = length
        kv.recurrent.put(length, states(length))
        kv.recurrent.keep(length)
    return kv


def test_the_last_states_replace_those_that_are_not_kept() -> None:
    """Only the last ones take memory, and what was kept before."""
    recurrent = Recurrent()
    assert recurrent.after(0) is None
    for length in (3, 4, 5):
        recurrent.put(length, states(length))
    assert (recurrent.length, recurrent.num_bytes, at(recurrent, 5)) == (5, 8, 5)
    with pytest.raises(KeyError):
        recurrent.after(4)
    recurrent.keep(5)
    recurrent.keep(4)  # is not here
    recurrent.put(9, states(9))
    assert (at(recurrent, 5), at(recurrent, 9), recurrent.num_bytes) == (5, 9, 16)


def test_the_latest_are_kept() -> None:
    """Older ones are computed again from those that are left, or from the beginning."""
    kv = filled(*range(10, 80, 10))
    assert kv.recurrent is not None
    assert kv.recurrent.num_bytes == 8 * KEPT
    kv.truncate(69)
    assert kv.length == 60
    kv.truncate(20)
    assert kv.length == 0
    assert kv.recurrent.num_bytes == 0


def test_a_cut_goes_back_to_the_states_before_it() -> None:
    """Keys and values could be cut anywhere; both are valid after the cut."""
    kv = filled(10, 20, 30)
    kv.truncate(30)
    assert kv.length == 30
    kv.truncate(25)
    assert kv.length == 20
    assert kv.recurrent is not None
    assert at(kv.recurrent, 20) == 20


def test_a_copy_has_the_last_states_up_to_a_length() -> None:
    """It is independent of its source, and as long as its states."""
    kv = filled(10, 20)
    copy = kv.copy(15)
    assert copy.length == 10
    kv.clear(torch.device("cpu"))
    assert copy.recurrent is not None
    assert at(copy.recurrent, 10) == 10
    assert kv.length == 0
    assert filled(10).copy(5).length == 0


def test_bytes_are_counted() -> None:
    """A session takes at most what was promised for its tokens."""
    kv = filled(*range(64, 64 * 8, 64))
    assert kv.num_bytes <= kv.most_bytes(kv.length)
    assert LAYOUT.num_bytes(0) == 8 * (2 + KEPT)


def test_a_failed_step_goes_back_to_its_beginning() -> None:
    """Also after several of its passes, and where nothing was kept; the next step forgets it."""
    kv = filled(10)
    assert kv.recurrent is not None
    kv.recurrent.put(12, states(12))
    kv.length = 12
    kv.recurrent.begin()
    for length in (13, 14, 15):
        kv.recurrent.put(length, states(length))
        kv.length = length
    kv.truncate(12)
    assert (kv.length, at(kv.recurrent, 12)) == (12, 12)
    kv.recurrent.begin()
    kv.recurrent.put(13, states(13))
    kv.recurrent.begin()
    kv.recurrent.put(14, states(14))
    with pytest.raises(KeyError):
        kv.recurrent.after(12)


def test_a_move_keeps_the_states() -> None:
    """On the other device, with those that are kept."""
    kv = filled(10, 20)
    kv.move(torch.device("cpu"))
    kv.truncate(15)
    assert kv.length == 10
    assert kv.recurrent is not None
    assert at(kv.recurrent, 10) == 10
