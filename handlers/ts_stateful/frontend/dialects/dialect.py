"""The interface of a dialect: how it reads requests and writes answers."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.chat import AnyRequest
from ts_stateful.protocol.events import Event

__all__ = ["JSON", "SSE", "Dialect", "Responder", "Translation", "Unnamed", "Whole"]

JSON = "application/json"
SSE = "text/event-stream"


class Whole(NamedTuple):
    """An answer in one piece."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = {}  # of its form; without them, `Responder.piece` writes it


class Responder(ABC):
    """The writer of the answer to one request. `event.body` is a document of this package's own protocol."""

    stream_type: ClassVar[str] = JSON  # the content type of a stream
    idle: ClassVar[bytes] = b""  # the message of a gRPC stream without news
    pulls: ClassVar[bool] = False  # its clients support `continue`
    announces: ClassVar[bool] = False  # `piece` writes the acceptance of a request, too

    @abstractmethod
    def whole(self, event: Event) -> Whole:
        """Write the only response: an answer, or an error before anything was sent."""

    @abstractmethod
    def piece(self, event: Event) -> bytes:
        """Write an event of a stream, framed for its content type; a late error is the last event."""

    def keep(self, event: Event) -> None:
        """Keep the answer of one of several replies for the only response."""
        raise NotImplementedError(f"{type(self).__name__} has one reply")


class Unnamed(enum.Enum):
    """The treatment of a request that needs a session and names none."""

    OPENS = "opens"  # a session that stays open
    EPHEMERAL = "ephemeral"  # a session that ends with the answer
    REFUSED = "refused"


@dataclass(frozen=True)
class Translation:
    """The meaning of a request, which wants so many `choices`. If no engine is needed, `answer` of `status` replaces `request`.

    `ignored` fields have no effect.
    """

    request: AnyRequest | None
    responder: Responder
    unnamed: Unnamed = Unnamed.OPENS
    answer: bytes = b""
    status: int = 200
    ignored: tuple[str, ...] = ()
    choices: int = 1


class Dialect(Protocol):
    """A protocol of clients."""

    @property
    def responder(self) -> Responder:
        """Return the writer of errors for requests that cannot be read."""

    def matches(self, body: RequestBody) -> bool:
        """Return True if a request is in this dialect."""

    def read(self, body: RequestBody) -> Translation:
        """Translate a request of this dialect.

        Raises:
            StatefulError: the request is refused.
        """
