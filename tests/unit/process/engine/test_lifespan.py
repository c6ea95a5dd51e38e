"""The end of an engine: by the clock alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.clock import FakeClock
from ts_stateful.config.schema import EngineConfig
from ts_stateful.process.engine.lifespan import Lifespan


class Frontend:
    """A process that runs until a test makes it a zombie."""

    status_now: str = psutil.STATUS_RUNNING

    def is_running(self) -> bool:
        """Return True; zombies run, too."""
        return True

    def status(self) -> str:
        """Return the process's status."""
        return self.status_now


class Life:
    """A lifespan with a clock, a frontend that can exit, and work to finish."""

    def __init__(self, archive: Path = Path(__file__)) -> None:
        self.archive = archive
        self.clock = FakeClock()
        self.frontend = Frontend()
        self.busy = False
        settings = EngineConfig(drain_sec=20, engine_linger_sec=60)
        self.span = Lifespan(settings, self.frontend, str(archive), self.clock)

    def over_after(self, seconds: float) -> bool:
        """Advance the clock; return True if the engine's life is over then."""
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
    """It ends after its worker has detached, if no worker comes from a second registration of the archive."""
    life = Life(tmp_path / "archive")
    life.archive.mkdir()
    assert not life.over_after(59)
    life.archive.rmdir()
    life.span.attached(str(life.archive))
    assert not life.over_after(100)
    life.span.detached()
    assert not life.over_after(2)
    assert not life.over_after(9)
    assert life.over_after(1)


def test_an_engine_whose_model_is_registered_again_stays(tmp_path: Path) -> None:
    """It then depends on the archive in the new place."""
    life, again = Life(tmp_path / "archive"), tmp_path / "again"
    assert not life.over_after(2)
    assert not life.over_after(9)
    again.mkdir()
    life.span.attached(str(again))
    assert not life.over_after(1000)
    life.span.detached()
    assert not life.over_after(50)
    again.rmdir()
    assert not life.over_after(2)
    assert life.over_after(10)


def test_a_model_may_be_registered_again_many_times(tmp_path: Path) -> None:
    """The time for it starts when the archive is missing, each time."""
    life = Life(tmp_path / "archive")
    for _ in range(3):
        assert not life.over_after(2)
        assert not life.over_after(9)
        life.span.attached(str(life.archive))
        assert not life.over_after(1000)
        life.span.detached()


def test_a_draining_engine_finishes_its_work(life: Life) -> None:
    """It ends as soon as the work is done. A second request to drain gives it no more time."""
    life.busy = True
    life.span.drain("asked to")
    assert not life.over_after(19)
    life.span.drain("asked to")
    assert life.over_after(1)
    life.busy = False
    other = Life()
    other.span.drain("asked to")
    assert other.over_after(0)


def test_an_engine_finishes_its_work_after_torchserve_has_exited(life: Life) -> None:
    """No other process needs its folder then."""
    life.busy = True
    life.frontend.status_now = psutil.STATUS_ZOMBIE
    assert not life.over_after(2)
    assert life.span.frontend_exited
    life.busy = False
    assert life.over_after(0)


def test_torchserve_may_exit_while_the_engine_drains(life: Life) -> None:
    """The engine gets no more time for it."""
    life.busy = True
    life.span.drain("asked to")
    assert not life.over_after(10)
    life.frontend.status_now = psutil.STATUS_ZOMBIE
    assert not life.over_after(5)
    assert life.span.frontend_exited
    assert life.over_after(5)


def test_a_detached_engine_waits_for_a_worker(life: Life) -> None:
    """It waits for `engineLingerSec` after the last worker has detached."""
    life.over_after(1000)
    life.span.detached()
    assert not life.over_after(60)
    assert life.over_after(2)
    assert not life.span.frontend_exited


def test_a_store_that_hangs_keeps_no_engine(repository: Path) -> None:
    """It ends within one call, however many are queued; the interpreter would wait for all of them."""
    code = """if True:
        import time
        from ts_stateful.config.schema import StoreConfig
        from ts_stateful.process.engine.lifespan import exit_soon
        from ts_stateful.store.threads import started_pool
        pool = started_pool(1, "store")
        for _ in range(100):
            pool.submit(time.sleep, 60)
        exit_soon(StoreConfig(timeout_sec=0.1))
    """
    command = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": "handlers"}
    subprocess.run(command, cwd=repository, env=env, check=True, timeout=50)
