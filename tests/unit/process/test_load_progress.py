"""The step of an engine that loads its model."""

from __future__ import annotations

from pathlib import Path

from tests.support.clock import FakeClock
from ts_stateful.process.load_progress import LoadProgress, read_load_step


def test_the_reader_sees_the_last_step(tmp_path: Path) -> None:
    """Another process reads the step, its share of bytes and its seconds."""
    clock, path = FakeClock(), tmp_path / "engine-0.loading"
    progress = LoadProgress(path, clock)
    progress.begin("opening the store")
    progress.begin("loading the weights", 13_500_000_000)
    clock.sleep(12.0)
    progress.advance(0.2)
    step = read_load_step(path)
    assert step is not None
    assert step.in_words(clock) == "loading the weights [####----------------] 2.7 of 13.5 GB, 12 s"
    progress.begin("checking images")
    step = read_load_step(path)
    assert step is not None
    assert step.in_words(clock) == "checking images, 0 s"


def test_a_fast_step_is_not_written_for_each_tensor(tmp_path: Path) -> None:
    """Thousands of tensors in a moment cost one write."""
    clock, path = FakeClock(), tmp_path / "engine-0.loading"
    progress = LoadProgress(path, clock)
    progress.begin("loading the weights", 100)
    written = path.read_bytes()
    progress.advance(0.5)
    assert path.read_bytes() == written


def test_nothing_is_read_where_nothing_is_loaded(tmp_path: Path) -> None:
    """A missing file and one that is no step give no step."""
    path = tmp_path / "engine-0.loading"
    assert read_load_step(path) is None
    path.write_text("{}")
    assert read_load_step(path) is None


def test_a_folder_that_is_missing_does_not_stop_the_engine(tmp_path: Path) -> None:
    """A step that cannot be written is skipped."""
    LoadProgress(tmp_path / "none" / "engine-0.loading").begin("checking images")
