"""The format of logs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import logging
from ts_stateful.process.logs import configure_logs
configure_logs("front")
logging.getLogger("a").info("one %s", "line")
logging.getLogger("a").debug("hidden")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("b").exception("failed")
"""


def lines(**environ: str) -> list[str]:
    """The log of a process of its own, by its variables."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()


def test_json_has_one_object_a_line() -> None:
    """Also for a trace."""
    first, second = map(json.loads, lines(TS_STATEFUL_LOG_FORMAT="json"))
    assert first["message"] == "one line"
    assert (first["level"], first["process"], first["logger"]) == ("INFO", "front", "a")
    assert "ZeroDivisionError" in second["trace"]


@pytest.mark.parametrize(("level", "shown"), [("ERROR", "failed"), ("nonsense", "one line")])
def test_the_level_is_chosen(level: str, shown: str) -> None:
    """An unknown one is INFO."""
    assert lines(TS_STATEFUL_LOG_LEVEL=level)[0].endswith(shown)
