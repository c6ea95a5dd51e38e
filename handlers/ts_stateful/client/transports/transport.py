"""The interface of a transport: one document for an answer, or several.

A transport raises `ClientError` if the connection fails, and the server's `StatefulError` if an HTTP status carries one.
Errors inside answers are left to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ts_stateful.client.documents import MAX_BODY_BYTES
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Command, Prompt

__all__ = ["Events", "Pipeline", "Transport", "TransportOptions"]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")

Events = Generator[bytes, None, None]
"""The documents of one stream. `close()` gives the stream up, also before its end; it may take a round trip."""


@dataclass(frozen=True)
class TransportOptions:
    """The settings of a connection, as `connect` takes them; `profile` None: find it out."""

    model: str = "chat"
    headers: Mapping[str, str] = field(default_factory=dict)
    session_header: str = "ts_request_sequence_id"
    max_body_bytes: int = MAX_BODY_BYTES
    ca_file: str | Path | None = None
    profile: Profile | None = None

    def __post_init__(self) -> None:
        for name, value in {**self.headers, self.session_header: ""}.items():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ValueError(  # without the value, which may be a token
                    f"header {name!r}: a name has letters, digits and -_. and a value (or the token) ASCII on one line"
                )


class Pipeline(Protocol):
    """One sequence's stream: the answers come in the order of the requests."""

    def send(self, command: Command, raw: Mapping[str, bytes]) -> None:
        """Send a request without waiting."""

    def receive(self, timeout_s: float) -> bytes:
        """Return the next answer."""

    def close(self) -> None:
        """End the stream, or give it up if answers are missing."""


class Transport(Protocol):
    """A connection to one model of one server; usable from several threads."""

    max_body_bytes: int

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """Return the first document of the answer, within `timeout_s`. `raw` are inputs of a step that are sent unencoded."""

    def pipeline(self, session_id: str, timeout_s: float) -> Pipeline | None:
        """Open a stream for the steps of one sequence, which need not wait for each other's answers.

        Return None if the protocol has one answer for one request.
        """
        return None

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """Yield the documents of the answer as they come; nothing is sent before the first is asked for.

        If the profile has no streams, one document comes, with `more`. Raise `StreamStalled` if nothing comes for `stall_s`.
        """

    def close(self) -> None:
        """Close the connection. Calls in progress fail; over HTTP at their next bytes or timeout."""
