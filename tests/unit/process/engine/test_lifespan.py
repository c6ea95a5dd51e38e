"""When an engine ends: by the clock alone."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.support.clock import FakeClock
from ts_stateful.config.schema import EngineConfig
from ts_stateful.process.engine.lifespan import Lifespan


class Life:
    """A lifespan with a clock, a frontend that can go, and work to finish."""

    def __init__(self, archive: Path = Path(__file__)) -> None:
        self.archive = archive
        self.clock = FakeClock()
        self.frontend_lives = True
        self.busy = False
        settings = EngineConfig(drain_sec=20, engine_linger_sec=60)
        self.span = Lifespan(
            settings, os.getpid(), self.clock.monotonic, self._is_alive, str(archive)
        )

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
    life.span.attached(str(life.archive))
    return life


def test_an_engine_with_a_worker_lives_on(life: Life) -> None:
    """Idle or not."""
    for busy in (False, True):
        life.busy = busy
        assert not life.over_after(10_000)
    assert not life.span.is_draining


def test_an_engine_whose_model_was_unregistered_makes_room(tmp_path: Path) -> None:
    """When its worker has gone, and no other one has come from where the same archive was registered again."""
    life = Life(tmp_path / "archive")
    life.archive.mkdir()
    assert not life.over_after(59)
    life.archive.rmdir()
    life.span.attached(str(life.archive))
    assert not life.over_after(100)
    life.span.alone()
    assert not life.over_after(2)
    assert not life.over_after(9)
    assert life.over_after(1)


def test_one_whose_model_is_registered_again_stays(tmp_path: Path) -> None:
    """And all is as before, with the archive in another place."""
    life, again = Life(tmp_path / "archive"), tmp_path / "again"
    assert not life.over_after(2)
    assert not life.over_after(9)
    again.mkdir()
    life.span.attached(str(again))
    assert not life.over_after(1000)
    life.span.alone()
    assert not life.over_after(50)
    again.rmdir()
    assert not life.over_after(2)
    assert life.over_after(10)


def test_it_may_be_registered_again_and_again(tmp_path: Path) -> None:
    """Each time it has as long, however long ago the archive was missed before."""
    life = Life(tmp_path / "archive")
    for _ in range(3):
        assert not life.over_after(2)
        assert not life.over_after(9)
        life.span.attached(str(life.archive))
        assert not life.over_after(1000)
        life.span.alone()


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
