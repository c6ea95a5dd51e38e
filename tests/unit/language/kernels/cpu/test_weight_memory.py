"""Weights are moved into huge pages where they are, if Linux can."""

from __future__ import annotations

import logging
import mmap
from pathlib import Path

import pytest
import torch

from ts_stateful.language.kernels.cpu import weight_memory
from ts_stateful.language.kernels.cpu.weight_memory import empty_copies, use_huge_pages

_SIZE = 1 << 21


def huge_kilobytes() -> int:
    """Return the kilobytes of this process that are in huge pages."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))


def collapses() -> bool:
    """Return True if this Linux moves memory into huge pages at once."""
    probe = mmap.mmap(-1, 2 * _SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    probe.write(bytes(2 * _SIZE))
    try:
        probe.madvise(25)
    except OSError:
        return False
    return True


@pytest.mark.skipif(not collapses(), reason="Linux has no MADV_COLLAPSE, or no huge pages")
def test_weights_are_moved_and_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """Their addresses too: kernels hold them."""
    weights = [torch.full((1024, 1024), float(i)) for i in range(8)]
    where = [weight.data_ptr() for weight in weights]
    before = huge_kilobytes()
    with caplog.at_level(logging.INFO):
        use_huge_pages(weights)
    assert huge_kilobytes() >= before + 16 * 1024
    assert "MB of weights are in huge pages" in caplog.text
    assert [weight.data_ptr() for weight in weights] == where
    assert all(bool((weight == i).all()) for i, weight in enumerate(weights))


@pytest.mark.skipif(not collapses(), reason="Linux has no huge pages")
def test_unwritten_memory_is_in_huge_pages_as_it_is_written() -> None:
    """Its size is one that the allocator maps: memory that was used before may have been written."""
    weights = torch.full((5120, 4096), 3.0)
    before = huge_kilobytes()
    (copy,) = empty_copies([weights], torch.bfloat16)
    assert huge_kilobytes() == before
    copy.copy_(weights)
    assert huge_kilobytes() >= before + 36 * 1024
    assert (copy.shape, copy.dtype) == (weights.shape, torch.bfloat16)
    assert bool((copy == 3).all())


def test_few_weights_stay(caplog: pytest.LogCaptureFixture) -> None:
    """Those of a small model are in a processor's caches."""
    with caplog.at_level(logging.INFO):
        use_huge_pages([torch.zeros(1024, 1024)])
    assert not caplog.records


def test_other_tensors_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Packed weights have no address, those of a device are not here."""
    packed = torch.zeros(4096, 1024).to_mkldnn()
    with caplog.at_level(logging.INFO):
        use_huge_pages([packed, torch.zeros(4096, 1024, device="meta")])
    assert not caplog.records


def test_a_system_without_huge_pages_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is moved."""
    monkeypatch.setattr(weight_memory, "_SIZE", tmp_path / "missing")
    with caplog.at_level(logging.INFO):
        use_huge_pages([torch.zeros(4096, 1024)])
    assert not caplog.records
    assert empty_copies([torch.zeros(4096, 1024)])[0].shape == (4096, 1024)


def test_ranges_are_whole_pages_in_one_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that are near share a range; a page that reaches beyond its mapping stays."""
    monkeypatch.setattr(weight_memory, "own_memory", lambda: [(50, 395), (400, 1000)])
    spans = [(10, 20), (110, 250), (260, 390), (401, 402), (905, 999)]
    assert list(weight_memory._ranges(spans, 100)) == [(100, 300), (400, 500), (900, 1000)]
