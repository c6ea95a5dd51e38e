"""What a dialect is: how one kind of client asks, and how it is answered.

Owns the seam between the frontend and the dialects. Knows nothing of TorchServe, engines or models: all of it is pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ts_stateful.frontend.parsing.headers import RowHeaders
from ts_stateful.protocol.events import Event
from ts_stateful.protocol.requests import AnyRequest

__all__ = [
    "JSON",
    "SSE",
    "Content",
    "Dialect",
    "Letter",
    "Translation",
    "Unnamed",
    "Voice",
    "Whole",
]

JSON = "application/json"
SSE = "text/event-stream"


class Content(NamedTuple):
    """The body of a request: its JSON object, and the files of a form."""

    document: dict[str, Any]
    attachments: tuple[bytes, ...] = ()


class Letter:
    """A request as it came. Its body is read when somebody asks for it, so that a dialect that is told by the path can say what
    is wrong with it.
    """

    def __init__(self, headers: RowHeaders, read: Callable[[], Content]) -> None:
        self.headers = headers
        self._read = read

    @cached_property
    def content(self) -> Content:
        """Its body.

        Raises:
            InvalidRequest: it is no JSON object.
        """
        return self._read()

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of its body; raises what `content` does."""
        return self.content.document


class Whole(NamedTuple):
    """An answer in one piece."""

    status: int
    body: bytes
    content_type: str = JSON


class Voice(Protocol):
    """How the answer to one request is said. `event.body` is always a document of this package's own protocol."""

    @property
    def stream_type(self) -> str:
        """The content type of a stream."""
        ...

    @property
    def idle(self) -> bytes:
        """What a stream over gRPC may say while there is nothing to say."""
        ...

    @property
    def pulls(self) -> bool:
        """Whether its clients know `continue`."""
        ...

    def whole(self, event: Event) -> Whole:
        """The only response: an answer, or an error before anything was sent."""
        ...

    def piece(self, event: Event) -> bytes:
        """What an event adds to a stream, framed for its content type; an error that comes late is the last event."""
        ...


class Unnamed(enum.Enum):
    """What becomes of a request that names no session but needs one."""

    OPENS = "opens"  # one, which stays open
    ALONE = "alone"  # has one for itself, which ends with the answer
    REFUSED = "refused"


@dataclass(frozen=True)
class Translation:
    """What a request means. `answer` is there instead of `request` where nobody needs to be asked."""

    request: AnyRequest | None
    voice: Voice
    unnamed: Unnamed = Unnamed.OPENS
    answer: bytes = b""


class Dialect(Protocol):
    """One way of speaking to this server."""

    @property
    def voice(self) -> Voice:
        """How a request is refused that could not be read."""
        ...

    def speaks(self, letter: Letter) -> bool:
        """Whether a request is in this dialect."""
        ...

    def read(self, letter: Letter) -> Translation:
        """What a request in this dialect means.

        Raises:
            StatefulError: it is refused.
        """
        ...
