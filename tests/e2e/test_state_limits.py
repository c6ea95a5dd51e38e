"""Bounds of steps: of their bodies, and of the bytes that a worker holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.e2e.speak import error_of, eventually
from tests.e2e.state_server import AsgiStateModels, StateModels, at
from tests.e2e.steps import Document, HttpLine, Line, Lines, new_id, number, post, sum_of
from tests.support.state_models.ledger import HOLD

BIG = number(1, outputs=[{"name": "sum"}] * 8000)  # more than the bytes that this server may hold
# Of TorchServe's profiles; in the sequence profile, it holds the next requests back itself.
WAYS = ["http", "unary", "async"]


class Held:
    """A server of the ledger with a step in flight, which ends when the gate is removed."""

    def __init__(self, models: StateModels | AsgiStateModels, line: Line) -> None:
        self.server = models.server
        self.gate = models.gate
        self._held = models.held
        self._line = line

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Send the step."""
        self._held.unlink(missing_ok=True)
        self.gate.touch()
        self.step: Future[Document] = pool.submit(self._line.ask, number(HOLD))
        eventually(self._held.exists)


@pytest.fixture
def make(way: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], Line]]:
    """Makes lines to the ledger at one of the fronts."""
    if way != "asgi":
        lines: Lines = request.getfixturevalue("lines")
        yield lambda: lines(way)
        return
    models: AsgiStateModels = request.getfixturevalue("asgi_state_models")
    with ExitStack() as stack:

        def line() -> Line:
            made = HttpLine(models.server, "ledger", new_id())
            stack.callback(made.close)
            return made

        yield line


@pytest.fixture
def held(make: Callable[[], Line], way: str, request: pytest.FixtureRequest) -> Iterator[Held]:
    """A step that is in flight."""
    name = "asgi_state_models" if way == "asgi" else "state_models"
    held = Held(request.getfixturevalue(name), make())
    with ThreadPoolExecutor(1) as pool:
        held.begin(pool)
        yield held
        held.gate.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "way", [*(at("state_models", way) for way in WAYS), at("asgi_state_models", "asgi")]
)
def test_bytes_in_flight_are_bounded(make: Callable[[], Line], held: Held, way: str) -> None:
    """Beside a step in flight, a big one is refused for now, but no small one. Later the big one is accepted."""
    line = make()
    refused = line.ask(BIG)
    assert error_of(refused) == ("server_busy", 503)
    assert "100000 (handler.limits.maxInFlightBytes)" in refused["error"]["message"]
    assert (refused["error"]["retryable"], refused["error"]["retry_after_s"]) == (True, 1.0)
    if way in ("http", "asgi"):
        response = post(held.server, "ledger", BIG, session=line.session)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert error_of(line.ask(number(1, begin=True))) == ("invalid_request", 400)
    held.gate.unlink()
    assert sum_of(held.step.result()) == HOLD
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
