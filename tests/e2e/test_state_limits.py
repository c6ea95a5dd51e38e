"""Bounds of steps: of their bodies, and of the bytes that a worker holds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.e2e.speak import error_of, eventually
from tests.e2e.state_server import StateModels
from tests.e2e.steps import Document, Lines, new_id, number, post, sum_of
from tests.support.state_models.ledger import HOLD

BIG = number(1, outputs=[{"name": "sum"}] * 8000)  # more than the bytes that this server may hold
WAYS = [
    "http",
    "unary",
    "async",
]  # in the sequence profile, TorchServe itself holds the next requests back


@pytest.fixture
def held(state_models: StateModels, lines: Lines, way: str) -> Iterator[Future[Document]]:
    """A step that is in flight until the gate is removed."""
    line = lines(way)
    state_models.held.unlink(missing_ok=True)
    state_models.gate.touch()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(line.ask, number(HOLD))
        eventually(state_models.held.exists)
        yield step
        state_models.gate.unlink(missing_ok=True)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_in_flight_are_bounded(
    state_models: StateModels, lines: Lines, held: Future[Document], way: str
) -> None:
    """Beside a step in flight, a big one is refused for now, but no small one. Later the big one is accepted."""
    line = lines(way)
    refused = line.ask(BIG)
    assert error_of(refused) == ("server_busy", 503)
    assert "100000 (handler.limits.maxInFlightBytes)" in refused["error"]["message"]
    assert (refused["error"]["retryable"], refused["error"]["retry_after_s"]) == (True, 1.0)
    if way == "http":
        response = post(state_models.server, "ledger", BIG, session=line.session)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert error_of(line.ask(number(1, begin=True))) == ("invalid_request", 400)
    state_models.gate.unlink()
    assert sum_of(held.result()) == HOLD
    assert sum_of(line.ask(BIG)) == 1


def test_big_steps_are_refused(lines: Lines, way: str) -> None:
    """In every profile; the sequence goes on after them."""
    line = lines(way)
    assert sum_of(line.ask(number(1))) == 1
    for document, error in (
        (number(1, id="x" * 1_000_000), ("context_too_long", 413)),
        ({"inputs": [{"name": "number", "data": [1] * 100_000}]}, ("invalid_request", 400)),
        (
            {"inputs": [{"name": "number", "data": ["x" * 500_000, *[""] * 50_000]}]},
            ("invalid_request", 400),
        ),
    ):
        assert error_of(line.ask(document)) == error
    assert sum_of(line.ask(number(1, end=True))) == 2


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"1," * 500_001, ("context_too_long", 413)), (b"1," * 100_000, ("invalid_request", 400))],
)
def test_numbers_in_a_raw_body_are_bounded(
    state_models: StateModels, content: bytes, error: tuple[str, int]
) -> None:
    """The error names the input."""
    model, headers = state_models.named("ledger"), {"Content-Type": "text/plain"}
    refused = post(state_models.server, model, content=content, headers=headers, session=new_id())
    assert error_of(refused.json()) == error
    assert refused.json()["error"]["field"] == "number"
    assert "(handler.limits.maxJson" in refused.json()["error"]["message"]
