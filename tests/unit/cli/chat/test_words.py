"""Lines about a server that lets its user wait, and about errors."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.support.worker import eventually
from ts_stateful.cli.chat.words import reason, waiting
from ts_stateful.client import DeadlineExceeded
from ts_stateful.protocol.errors import EngineUnavailable


class Waiting:
    """A server whose engine runs, or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[float] = []

    def hello(self, timeout_s: float) -> None:
        """Answer, or refuse."""
        self.asked.append(timeout_s)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (EngineUnavailable("it restarts"), "engine_unavailable: it restarts"),
        (DeadlineExceeded("no answer within 5 s"), "the server does not answer"),
    ],
)
def test_a_user_reads_what_is_waited_for(
    error: Exception, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the server does not answer a short question either."""
    server: Any = Waiting(error)
    printed: list[str] = []

    def has_come() -> bool:
        printed.append(capsys.readouterr().err)
        return "\n" in "".join(printed)

    with waiting(server, 0.0):
        eventually(has_come)
    assert "".join(printed) == f"waiting until --timeout: {why}\n"


def test_a_slow_reply_is_not_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The server answers; and who does not wait long asks for nothing."""
    slow: Any = Waiting()
    with waiting(slow, 0.0):
        eventually(lambda: bool(slow.asked))
    quick: Any = Waiting()
    with waiting(quick):
        pass
    assert quick.asked == []
    assert capsys.readouterr().err == ""


def test_of_a_copy_onto_a_full_disk_the_copy_is_named() -> None:
    """The source lies on another disk; of other errors it is the file."""
    assert reason(OSError(errno.ENOSPC, "full", "from", None, "to")) == "to: full"
    assert reason(OSError(errno.ENOSPC, "full", "made")) == "made: full"
    assert reason(OSError(errno.EACCES, "denied", "from", None, "to")) == "from: denied"
