"""The state of the server, asked again and again by one thread for all browsers."""

from __future__ import annotations

import threading

from ts_stateful.cli.chat.words import reason
from ts_stateful.client import ClientError, Server
from ts_stateful.protocol.answers import HelloAnswer
from ts_stateful.protocol.errors import StatefulError, Unauthenticated

__all__ = ["ServerWatch"]

_UP_S, _DOWN_S = 5.0, 1.0  # between two questions
_TIMEOUT_S = 5.0


class ServerWatch:
    """Knows if the server answers. `server` must not wait for one that is down.

    `hello` is its last answer, None before the first one. `problem` is the reason if it does not answer now, `refusal` that
    of a server that answers, but takes the caller's token or header no more.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-watch", daemon=True)
        self.hello: HelloAnswer | None = None
        self.problem: str | None = None
        self.refusal: str | None = None

    @property
    def is_up(self) -> bool:
        """Return True if the server has answered the last question."""
        return self.problem is None and (self.hello or self.refusal) is not None

    def look(self) -> None:
        """Ask once."""
        try:
            self.hello = self._server.hello(_TIMEOUT_S)
            self.problem = self.refusal = None
        except Unauthenticated as error:
            self.problem, self.refusal = None, reason(error)
        except (ClientError, StatefulError) as error:
            self.problem = reason(error)

    def start(self) -> None:
        """Ask once, and go on asking."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End the questions."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_UP_S if self.is_up else _DOWN_S):
            self.look()
