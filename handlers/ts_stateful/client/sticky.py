"""Sessions by their ids, under the names that wrappers of SageMaker's sticky sessions have.

Owns which ids are in use here; a session is a `Session`, over whatever transport.
"""

from __future__ import annotations

from collections.abc import Iterable

from ts_stateful.client.images import ImageSource
from ts_stateful.client.reply import Reply
from ts_stateful.client.server import Server
from ts_stateful.client.session import PromptOptions, Session
from ts_stateful.protocol.errors import SessionError

__all__ = ["StickySessions"]


class StickySessions:
    """For programs that keep an id where they could keep a `Session`; every method raises what `Session`'s do.

    With `reopen`, sessions that expired are opened again (see `Server.open`); they keep the id by which they are known here.
    """

    def __init__(self, server: Server, *, reopen: bool = False) -> None:
        self._server = server
        self._reopen = reopen
        self._sessions: dict[str, Session] = {}

    def start_session(
        self,
        session_id: str | None = None,
        *,
        images: Iterable[ImageSource] = (),
        system: str | None = None,
    ) -> str:
        """Opens a session; its id, which is a new one where none is chosen."""
        session = self._server.open(
            images=images, system=system, session_id=session_id, reopen=self._reopen
        )
        self._sessions[session.session_id] = session
        return session.session_id

    def invoke(
        self, text: str, sampling_params: PromptOptions | None = None, *, session_id: str
    ) -> str:
        """One turn, its text in one piece."""
        return self._session(session_id).ask(text, **(sampling_params or {}))

    def invoke_stream(
        self, text: str, sampling_params: PromptOptions | None = None, *, session_id: str
    ) -> Reply:
        """One turn; iterate over the reply for its pieces."""
        return self._session(session_id).prompt(text, **(sampling_params or {}))

    def end_session(self, session_id: str) -> None:
        """Closes a session. One that has ended by itself is forgotten, too."""
        try:
            self._session(session_id).close()
        except SessionError:
            self._sessions.pop(session_id, None)
            raise
        del self._sessions[session_id]

    def _session(self, session_id: str) -> Session:
        """One that was not started here may have been by an earlier process."""
        if session_id not in self._sessions:
            self._sessions[session_id] = self._server.attach(session_id)
        return self._sessions[session_id]
