"""Pools whose threads all run from the beginning."""

from __future__ import annotations

import threading

import pytest

from ts_stateful.store.threads import started_pool


def names(prefix: str) -> set[str]:
    """Return the names of running threads with this prefix."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)}


def test_all_threads_are_started() -> None:
    """A later call needs no new thread."""
    with started_pool(3, "all-there") as pool:
        assert names("all-there") == {"all-there_0", "all-there_1", "all-there_2"}
        assert pool.submit(len, "four").result() == 4
        assert len(names("all-there")) == 3


def test_a_thread_that_cannot_start_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that did start end again."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "too-many_2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started_pool(3, "too-many")
    assert not names("too-many")
