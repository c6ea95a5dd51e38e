"""Pools whose threads are all there from the beginning."""

from __future__ import annotations

import threading

import pytest

from ts_stateful.store.threads import started_pool


def names(prefix: str) -> set[str]:
    """The threads whose names begin like that."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)}


def test_all_threads_are_started() -> None:
    """So that nothing that is submitted later needs a new one."""
    with started_pool(3, "all-there") as pool:
        assert names("all-there") == {"all-there_0", "all-there_1", "all-there_2"}
        assert pool.submit(len, "four").result() == 4
        assert len(names("all-there")) == 3


def test_what_cannot_be_started_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that were started do not stay."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "too-many_2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started_pool(3, "too-many")
    assert not names("too-many")
