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


def lines(program: str = _PROGRAM, **environ: str) -> list[str]:
    """The log of a process of its own, by its variables."""
    done = subprocess.run(
        [sys.executable, "-c", program],
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


_WORKER = """
import logging, sys
from ts_stateful.process.logs import format_worker_log
logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
format_worker_log()
logging.getLogger("a").info("one", extra={"fields": {"tokens": 5}})
logging.getLogger("ts.metrics").info("[METRICS]Time.ms:1|#")
"""


_FAILING = """
import logging, sys
from ts_stateful.config.schema import ConfigError
from ts_stateful.process.logs import format_worker_log
logging.basicConfig(stream=sys.stderr, level=logging.INFO)
format_worker_log()
for error in (ConfigError("the cure"), RuntimeError("500 - Unknown exception"), RuntimeError("other")):
    try:
        raise error
    except Exception as caught:
        logging.getLogger("ts").exception("failed: %s", caught)
        logging.getLogger("ts").exception("Backend worker process died.")
"""


def test_a_model_that_does_not_load_leaves_no_trace_in_the_workers_log() -> None:
    """Its reason would be buried, so it is in the line, once; other errors keep theirs."""
    *first, third, fourth, other, trace = [*lines(_FAILING)[:6]]
    assert [line.partition(" ERROR ts: ")[2] for line in first] == [
        "failed: the cure",
        "Backend worker process died. the cure",
    ]
    assert third.endswith("ERROR ts: failed: 500 - Unknown exception")
    assert fourth.endswith("ERROR ts: Backend worker process died. ".rstrip())
    assert other.endswith("failed: other")
    assert "Traceback" in trace


def test_torchserves_worker_has_the_same_format() -> None:
    """But for the lines in which TorchServe looks for metrics."""
    first, metrics = lines(_WORKER, TS_STATEFUL_LOG_FORMAT="json")
    line = json.loads(first)
    assert (line["process"], line["message"], line["tokens"]) == ("worker", "one", 5)
    assert metrics == "[METRICS]Time.ms:1|#"
    assert lines(_WORKER)[0].endswith(" INFO a: one")
    assert lines(_WORKER, TS_STATEFUL_LOG_LEVEL="ERROR") == []
