"""The parent of fronts, which is interrupted at any moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.worker import eventually
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings

COUNTER = Path(__file__).parents[3] / "examples" / "counter"


class SlowVariables(Mapping[str, str]):
    """Variables that are read when a front is about to start; that takes until the server is to stop."""

    def __init__(self) -> None:
        self.server: AsgiServer | None = None
        self.are_read = False

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        server = self.server
        if server is not None:
            self.are_read = True
            eventually(lambda: server._is_stopping)
        return iter(())


class Interrupted(AsgiServer):
    """A server whose start is interrupted while its first front starts."""

    def __init__(self, settings: AsgiServerSettings, variables: SlowVariables) -> None:
        super().__init__(settings)
        self._slow = variables

    def show_step(self) -> None:
        """Interrupt the wait, as Ctrl-C does."""
        if self._slow.are_read:
            raise KeyboardInterrupt


def test_a_front_that_starts_while_the_server_stops_is_ended(
    tmp_path: Path,
) -> None:
    """It is not left running, with the server waiting for it for ever."""
    for path in (COUNTER / "model-config.yaml", COUNTER / "model" / "counter.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    variables = SlowVariables()
    settings = AsgiServerSettings((str(tmp_path),), ports=free_ports(), environ=variables)
    server = Interrupted(settings, variables)
    variables.server = server
    with pytest.raises(KeyboardInterrupt):
        server.start()
    front = server._front
    assert front is not None
    assert front.returncode is not None
