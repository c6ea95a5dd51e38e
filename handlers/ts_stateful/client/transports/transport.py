"""What a client needs of a transport: one document for an answer, or several.

Owns the interface alone. A transport raises `ClientError` for what goes wrong on the way and the server's `StatefulError` where
a status says so; errors inside answers are found by whoever reads these.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol

from ts_stateful.protocol.requests import Command, Prompt

__all__ = ["Events", "Pipeline", "Transport"]

Events = Generator[bytes, None, None]
"""The documents of one stream. `close()` gives the stream up, whether or not it has ended; it may take a round trip."""


class Pipeline(Protocol):
    """One sequence's stream: the answers come in the order of the requests."""

    def send(self, command: Command, raw: Mapping[str, bytes]) -> None:
        """Sends a request; does not wait."""

    def receive(self, timeout_s: float) -> bytes:
        """The next answer."""

    def close(self) -> None:
        """Ends the stream, or gives it up where answers are missing."""


class Transport(Protocol):
    """A connection to one model of one server; usable from several threads."""

    max_body_bytes: int

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """The first document of the answer, within `timeout_s`. `raw` are inputs of a step that are sent as they are."""

    def pipeline(self, session_id: str, timeout_s: float) -> Pipeline | None:
        """A stream for the steps of one sequence, which need not wait for each other's answers; None where there is none."""

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """The documents of the answer as they come; nothing is sent before the first is asked for.

        Where the profile has no streams, the one document that comes says `more`. Raises `StreamStalled` when nothing comes
        for `stall_s`.
        """

    def close(self) -> None:
        """Closes the connection; what is in progress fails, over HTTP when something comes or nothing has for too long."""
