"""Sessions by their ids, with the method names of wrappers of SageMaker's sticky sessions; over any transport."""

from __future__ import annotations

from collections.abc import Iterable

from ts_stateful.client.images import ImageSource
from ts_stateful.client.reply import Reply
from ts_stateful.client.server import Server
from ts_stateful.client.session import PromptOptions, Session
from ts_stateful.protocol.errors import SessionError

__all__ = ["StickySessions"]


class StickySessions:
    """Sessions for programs that keep an id instead of a `Session`; the methods raise what `Session`'s do.

    With `reopen`, expired sessions are opened again (see `Server.open`) and keep their id here.
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
        """Open a session and return its id, a new one by default."""
        session = self._server.open(
            images=images, system=system, session_id=session_id, reopen=self._reopen
        )
        self._sessions[session.session_id] = session
        return session.session_id

    def invoke(
        self, text: str, sampling_params: PromptOptions | None = None, *, session_id: str
    ) -> str:
        """Run one turn and return its text in one piece."""
        return self._session(session_id).ask(text, **(sampling_params or {}))

    def invoke_stream(
        self, text: str, sampling_params: PromptOptions | None = None, *, session_id: str
    ) -> Reply:
        """Begin one turn; iterate over the reply for its pieces."""
        return self._session(session_id).prompt(text, **(sampling_params or {}))

    def end_session(self, session_id: str) -> None:
        """Close a session. A session that has expired is forgotten, too."""
        try:
            self._session(session_id).close()
        except SessionError:
            self._sessions.pop(session_id, None)
            raise
        del self._sessions[session_id]

    def _session(self, session_id: str) -> Session:
        """Return the session; attach to it if an earlier process started it."""
        if session_id not in self._sessions:
            self._sessions[session_id] = self._server.attach(session_id)
        return self._sessions[session_id]
