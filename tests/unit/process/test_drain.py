"""The processes of a server, by what they are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import psutil

from ts_stateful.process.drain import end_engines, engines_in

_FORKS = """
import os, signal
from ts_stateful.process.names import ENGINE, take_name

take_name(f"{ENGINE}-0")
if os.fork():
    print(flush=True)
signal.pause()
"""

_EXITED = """
import os, signal

if child := os.fork():
    print(child, flush=True)
    signal.pause()
"""


def test_what_an_engine_forks_is_no_engine(tmp_path: Path) -> None:
    """Though it has the engine's name until it runs another program."""
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS], env=environ, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        (forked,) = psutil.Process(engine.pid).children()
        try:
            assert [found.pid for found in engines_in(tmp_path)] == [engine.pid]
        finally:
            forked.kill()
            engine.kill()


def test_an_engine_has_ended_though_nothing_reaps_it() -> None:
    """Its parent may be the first process of a container, of which some never do."""
    with subprocess.Popen([sys.executable, "-c", _EXITED], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            end_engines([psutil.Process(int(parent.stdout.readline()))], math.inf)
        finally:
            parent.kill()
