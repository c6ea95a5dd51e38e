"""Programs of attacks on the inference ports: another client's session goes on, whatever they send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.programs import PROGRAMS, read
from tests.fuzz.search import inputs
from tests.fuzz.siege import Siege
from ts_stateful.serving.server import LocalServer

_EXAMPLES = 6
_DEADLINE_S = 60.0  # for an answer while a worker is replaced, on a busy machine


@pytest.fixture(params=["continuous", "asgi"])
def siege(request: pytest.FixtureRequest) -> Siege:
    """Attacks on each front in turn."""
    server: LocalServer = request.getfixturevalue(f"{request.param}_server")
    return Siege(server.http_url, server.grpc_url, _DEADLINE_S)


@pytest.mark.parametrize("name", ["half-closed-at-once", "many-small-values", "two-framings"])
def test_another_client_is_served_after_a_known_program(siege: Siege, name: str) -> None:
    """Half-closed calls, bodies whose parsing costs seconds, and requests whose length has two meanings."""
    siege.run(read(inputs(PROGRAMS)[name]))


def test_another_client_is_served_after_any_program(siege: Siege, tmp_path: Path) -> None:
    """The same programs in each run; `make fuzz` tries others."""
    found = siege.search(examples=_EXAMPLES, folder=tmp_path)
    assert found is None, f"{found}"
    assert siege.num_attacks >= _EXAMPLES
