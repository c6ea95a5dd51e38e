"""When an engine ends: by the clock alone."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.support.harness import Clock
from ts_stateful.config import EngineConfig
from ts_stateful.process.lifespan import Lifespan


class Life:
    """A lifespan with a clock, a frontend that can go, and work to finish."""

    def __init__(self, archive: Path = Path(__file__)) -> None:
        self.archive = archive
        self.clock = Clock()
        self.frontend_lives = True
        self.busy = False
        settings = EngineConfig(drain_sec=20, engine_linger_sec=60)
        self.span = Lifespan(settings, os.getpid(), self.clock, self._is_alive, archive)

    def _is_alive(self, process: psutil.Process) -> bool:
        return self.frontend_lives and process.pid == os.getpid()

    def over_after(self, seconds: float) -> bool:
        """Whether it is over so much later."""
        self.clock.now += seconds
        return self.span.is_over(lambda: self.busy)


@pytest.fixture
def life() -> Life:
    """An engine with a worker."""
    life = Life()
    life.span.attached(life.archive)
    return life


def test_an_engine_with_a_worker_lives_on(life: Life) -> None:
    """Idle or not."""
    for busy in (False, True):
        life.busy = busy
        assert not life.over_after(10_000)
    assert not life.span.is_leaving


def test_an_engine_whose_model_was_unregistered_makes_room(tmp_path: Path) -> None:
    """As soon as its worker has gone."""
    life = Life(tmp_path / "archive")
    life.archive.mkdir()
    assert not life.over_after(59)
    life.archive.rmdir()
    life.span.attached(life.archive)
    assert not life.over_after(2)
    life.span.alone()
    assert life.over_after(2)


def test_a_model_that_is_registered_again_in_time_keeps_its_engine(tmp_path: Path) -> None:
    """While something runs; then all is as before, in the archive's new place. One that was told to end does so."""
    for told in (False, True):
        life, again = Life(tmp_path / "archive"), tmp_path / "again"
        again.mkdir()
        life.busy = True
        assert not life.over_after(2)
        assert not life.over_after(10)
        if told:
            life.span.leave("asked to")
        life.span.attached(again)
        assert life.span.is_leaving is told
        life.busy = False
        assert life.over_after(1000) is told
        life.span.alone()
        assert life.over_after(50) is told
        again.rmdir()
        assert life.over_after(2)


def test_one_that_is_told_to_end_finishes_what_runs(life: Life) -> None:
    """And is over at once when that is done; asked once more, it gets no more time."""
    life.busy = True
    life.span.leave("asked to")
    assert not life.over_after(19)
    life.span.leave("asked to")
    assert life.over_after(1)
    life.busy = False
    other = Life()
    other.span.leave("asked to")
    assert other.over_after(0)


def test_one_whose_torchserve_is_gone_finishes_what_runs(life: Life) -> None:
    """Its folder is of no use to anybody then."""
    life.busy, life.frontend_lives = True, False
    assert not life.over_after(2)
    assert life.span.frontend_gone
    life.busy = False
    assert life.over_after(0)


def test_torchserve_may_go_while_the_engine_is_at_it(life: Life) -> None:
    """Which gives it no more time."""
    life.busy = True
    life.span.leave("asked to")
    assert not life.over_after(10)
    life.frontend_lives = False
    assert not life.over_after(5)
    assert life.span.frontend_gone
    assert life.over_after(5)


def test_one_that_is_alone_waits_for_a_worker(life: Life) -> None:
    """For `engineLingerSec`, from when the last one has gone."""
    life.over_after(1000)
    life.span.alone()
    assert not life.over_after(60)
    assert life.over_after(2)
    assert not life.span.frontend_gone
