"""The queue of an engine's thread."""

from __future__ import annotations

import threading

from ts_stateful.engine.services import WorkQueue


def test_actions_run_in_their_order() -> None:
    """Those that an action adds come last."""
    queue, done = WorkQueue(), list[str]()

    def first() -> None:
        done.append("a")
        queue.put(lambda: done.append("c"))

    queue.put(first)
    queue.put(lambda: done.append("b"))
    queue.run()
    assert done == ["a", "b", "c"]
    assert not queue.run_next()


def test_waiting_ends_with_the_first_action() -> None:
    """Another thread adds it."""
    queue, done = WorkQueue(), list[str]()
    thread = threading.Thread(target=lambda: queue.put(lambda: done.append("a")))
    thread.start()
    queue.run(patience_s=60.0)
    thread.join()
    assert done == ["a"]
