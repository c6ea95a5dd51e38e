"""Sequences that wait for a place, at both fronts."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from tests.e2e.speak import error_of
from tests.e2e.state_server import StateModels, at
from tests.e2e.steps import END, new_id, number, post, sum_of
from ts_stateful.serving.server import LocalServer

MODEL = "ledger-queued"  # one place, and two sequences that may wait for it


@pytest.fixture(params=[at("state_models", "torchserve"), at("asgi_state_models", "asgi")])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """Each front in turn."""
    if request.param == "asgi":
        front: LocalServer = request.getfixturevalue("asgi_state_models").server
        return front
    models: StateModels = request.getfixturevalue("state_models")
    models.named(MODEL)
    return models.server


def test_two_sequences_wait_and_a_third_is_refused(server: LocalServer) -> None:
    """Those that wait are answered one after the other, when the first one ends."""
    session = new_id()
    assert sum_of(post(server, MODEL, number(5), session=session).json()) == 5
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(post, server, MODEL, number(1, **END), session=new_id()) for _ in range(3)
        ]
        done, waiting = wait(asked, return_when=FIRST_COMPLETED)
        (refused,) = [future.result() for future in done]
        assert error_of(refused.json()) == ("too_many_sessions", 429)
        assert len(waiting) == 2
        assert sum_of(post(server, MODEL, number(2, **END), session=session).json()) == 7
        assert [sum_of(future.result().json()) for future in waiting] == [1, 1]
