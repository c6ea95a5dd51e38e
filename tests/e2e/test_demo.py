"""The demonstration of `make demo`, on a server that runs already."""

from __future__ import annotations

import re

import pytest

from examples.demo import converse
from ts_stateful.serving.server import LocalServer


def test_the_demo_shows_a_reply_that_outlives_its_engine(
    continuous_server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every answer is right, and what is printed about the kill and the costs is what happened."""
    (engine,) = continuous_server.engines()
    assert converse(continuous_server, word_s=0) == []
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert re.search(r"cancelled after \d+ words", printed)
    assert f"kill -9 {engine.pid}" in printed
    assert not engine.is_running()
    assert re.search(r"the reply went on after \d+\.\d s, to the same text as above", printed)
    costs = re.search(r"prompt tokens computed +([\d,]+) +([\d,]+)\n", printed)
    assert costs is not None
    computed, without_sessions = (int(number.replace(",", "")) for number in costs.groups())
    assert computed < without_sessions / 2
