"""The output of a server."""

from __future__ import annotations

import io

from tests.support.clock import FakeClock
from ts_stateful.serving.server_log import ServerLog


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_state_in_place() -> None:
    """A line of the log goes above it, and the end of the start removes it."""
    echo = _Terminal()
    log = ServerLog(None, echo, {})
    log.status("importing")
    log.status("importing")
    log.write("a line\n")
    log.status("")
    log.write("another\n")
    clear = "\r\x1b[K"
    assert echo.getvalue() == f"{clear}importing{clear}a line\nimporting{clear}another\n"
    assert "importing" not in str(log)


def test_a_pipe_gets_a_line_every_few_seconds() -> None:
    """Not each look at the state is a line."""
    clock, echo = FakeClock(), io.StringIO()
    log = ServerLog(None, echo, {}, clock)
    for second in range(11):
        log.status(f"importing, {second} s")
        clock.sleep(1.0)
    log.status("")
    lines = echo.getvalue().splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["importing, 5 s", "importing, 10 s"]
