"""One tab of a browser: its panes, the files that wait, and the sessions that its browser remembers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ts_stateful.cli.chat.files import FileRefused, Files, is_url
from ts_stateful.cli.chat.loop import ChatOptions
from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.cli.web.conversation import QUICK_S, Conversation, Question
from ts_stateful.cli.web.live_reply import LiveReply
from ts_stateful.cli.web.saved import SavedSession, SavedTurn, is_clip, parse_saved, state_after
from ts_stateful.client import ClientError, PromptOptions, Server
from ts_stateful.protocol.answers import ServerLimits
from ts_stateful.protocol.errors import SessionError, StatefulError

__all__ = ["BrowserTab", "Failures"]

Failures = (ClientError, StatefulError, FileRefused, OSError)
"""The errors that a page shows."""

_MOST_SAVED = 100
_MOST_CHECKED = 30


class BrowserTab:
    """The state of a page. `panes` are one or two conversations side by side.

    They are replaced, never changed: other threads draw them. Methods that ask the server raise `StatefulError` or
    `ClientError`; `notice` is the last error that belongs to no pane.
    """

    def __init__(self, server: Server, options: ChatOptions, uploads: Path) -> None:
        self._server = server
        self._options = options
        self._uploads = uploads
        self._files: Files | None = None
        self._sessions: dict[str, SavedSession] = {}
        self._kept: dict[str, SavedSession] = {}  # by the browser
        self._dropped: set[str] = set()
        self._running: tuple[Conversation, ...] = ()  # with a reply in progress, also left ones
        self.panes: tuple[Conversation, ...] = (self._first(),)
        self.notice: Exception | None = None
        self.status = ""  # of the server, as the tab shows it
        # The turns that each pane shows, with the number of their update.
        self._drawn: dict[int, tuple[int, Mapping[int, Exchange]]] = {}

    def _first(self) -> Conversation:
        session = self._options.session
        saved = None if session is None else SavedSession(id=session.session_id, at=0.0)
        return Conversation(self._server, saved)

    def is_drawn(self, pane: int, exchanges: Mapping[int, Exchange], update: int) -> bool:
        """Return True if the pane shows these turns already; else update `update` shows them."""
        last, drawn = self._drawn.get(pane, (0, None))
        if drawn is not exchanges and last < update:
            self._drawn[pane] = update, exchanges
        return drawn is exchanges

    # Files.

    def meet(self, limits: ServerLimits) -> None:
        """Take the limits of the server, with the first of which files can be added."""
        if self._files is None:
            self._files = Files(limits)
            self._files.add_images(self._options.images)
            self._files.add_audio(self._options.audio)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the files that go with the next question."""
        return () if self._files is None else self._files.names

    def add(self, source: str) -> None:
        """Add an upload, a file of the options, or the URL of a file for the server to fetch.

        Raises:
            FileRefused, OSError: see `Files`; or it is none of these.
        """
        if self._files is None:
            raise FileRefused("the server has not answered yet; its limits are not known")
        if not is_url(source) and not self._is_given(source):
            raise FileRefused(
                f"{source[:60]!r} is neither an upload nor a URL like https://example.com/a.png"
            )
        if is_clip(source):
            self._files.add_audio([source])
        else:
            self._files.add_images([source])

    def _is_given(self, path: str) -> bool:
        given = (*self._options.images, *self._options.audio)
        return path in given or Path(path).resolve().is_relative_to(self._uploads)

    def remove(self, source: str) -> None:
        """Drop a file that waits."""
        for waiting in (self._files.images, self._files.audio) if self._files else ():
            if source in waiting:
                waiting.remove(source)

    # Turns.

    def ask(
        self, pane: int, prompt: str, options: PromptOptions, system: str | None
    ) -> LiveReply | None:
        """Begin a turn, in a new session where that of the pane has ended; return None if one is in progress."""
        if self.panes[pane].live is not None or not prompt.strip():
            return None
        if self.panes[pane].state != "open":
            self._put(pane, Conversation(self._server))
        files = self._files
        question = Question(
            prompt,
            images=tuple(files.images) if files else (),
            audio=tuple(files.audio) if files else (),
            options=options,
            system=system,
        )
        if files is not None:
            files.clear()
        return self.panes[pane].ask(question)

    def finish(self, conversation: Conversation) -> str:
        """Take the reply that has ended; after a failure return the prompt, and its files wait again.

        A conversation that was left meanwhile is then shown beside.
        """
        is_left = conversation in self._running and conversation not in self.panes
        live = conversation.finish()
        if live is None or live.error is None:
            return ""
        if is_left:
            self.remember()
            self.panes = (*self.panes[:1], conversation)
        return self.ask_again([SavedTurn(live.prompt, live.files)])

    def ask_again(self, questions: Iterable[SavedTurn]) -> str:
        """Return the prompts of questions for the box, and let their files wait."""
        questions = list(questions)
        for source in (source for one in questions for source in one.files):
            try:
                self.add(source)
            except (FileRefused, OSError) as error:
                self.notice = error
        return "\n\n".join(one.prompt for one in questions)

    def fork(self, pane: int, turn: int) -> None:
        """Show a fork beside its source."""
        source = self.panes[pane]
        fork = source.fork(turn)
        self.remember()
        self.panes = (fork, source) if pane == 1 else (source, fork)

    def leave(self) -> None:
        """Close the second pane. Its session stays open."""
        self.remember()
        self.panes = self.panes[:1]

    def begin(self) -> None:
        """Show a new session in the first pane."""
        self.remember()
        self._put(0, Conversation(self._server))

    def show(self, session_id: str, pane: int) -> None:
        """Show a session of this browser in a pane; `read` reads its turns."""
        saved = self._sessions.get(session_id)
        if saved is None or session_id in self.shown:
            return
        self.remember()
        self._put(pane, Conversation(self._server, saved))

    def _put(self, pane: int, conversation: Conversation) -> None:
        self.panes = (*self.panes[:pane], conversation, *self.panes[pane + 1 :])

    def read(self) -> None:
        """Read the turns of sessions that were not read yet. A server that is down is asked later."""
        for conversation in self.panes:
            if not conversation.is_read:
                try:
                    conversation.restore()
                except (ClientError, StatefulError) as error:
                    conversation.failed(error)

    # What the browser remembers.

    @property
    def shown(self) -> list[str]:
        """Return the ids of the sessions in the panes."""
        return [one.saved.id for one in self.panes if one.saved is not None]

    def remember(self) -> None:
        """Note the sessions of the panes for the browser, and of those left with a reply in progress."""
        noted = dict.fromkeys((*self._running, *self.panes))
        for one in noted:
            if one.saved is not None:
                self._sessions[one.saved.id] = one.saved
        self._running = tuple(one for one in noted if one.live is not None)

    @property
    def sessions(self) -> list[SavedSession]:
        """Return the sessions of this browser, the latest first."""
        self.remember()
        return sorted(self._sessions.values(), key=lambda one: one.at, reverse=True)

    def recall(self, documents: Iterable[Any], shown: Sequence[Any] = ()) -> None:
        """Take what the browser has kept, and show the sessions `shown`, as before a reload."""
        saved = (one for one in parse_saved(documents) if one.id not in self._dropped)
        self._kept = {one.id: one for one in saved}
        self._sessions = dict(self._kept)
        for pane in (*self._running, *self.panes):
            if pane.saved is not None and pane.saved.id in self._kept:
                pane.take(self._kept[pane.saved.id])
        if shown and self._files is not None:
            self._files.clear()  # those of the options were sent before the reload
        for number, session_id in enumerate(shown[:2]):
            self.show(str(session_id), number)

    def check(self) -> None:
        """Mark the sessions that have ended."""
        for one in self.sessions[:_MOST_CHECKED]:
            if one.state == "open" and one.id not in self.shown:
                try:
                    self._server.attach(one.id, QUICK_S)
                except SessionError as error:
                    state = state_after(error) or one.state
                    self._sessions[one.id] = msgspec.structs.replace(one, state=state)
                except (ClientError, StatefulError):
                    return  # the server is down

    def end(self, session_id: str) -> None:
        """Close a session on the server, if it is open there, and forget it."""
        saved = self._sessions.get(session_id)
        if saved is None:
            return
        if saved.state == "open":
            with contextlib.suppress(SessionError):  # it has ended already
                self._server.attach(session_id, QUICK_S).close(QUICK_S)
        del self._sessions[session_id]
        self._dropped.add(session_id)
        ones = (*self._running, *self.panes)
        gone = [one for one in ones if one.saved is not None and one.saved.id == session_id]
        rest = tuple(one for one in self.panes if one not in gone)
        self.panes = rest or (Conversation(self._server),)
        self._running = tuple(one for one in self._running if one not in gone)

    def to_keep(self) -> str:
        """Write what the browser has to keep, as far as it lacks it, and to drop, as JSON without tags.

        `pending` are the questions whose sessions are still being opened.
        """
        sessions = self.sessions
        old = {one.id for one in sessions[_MOST_SAVED:]}
        lives = [one.live for one in self._running if one.saved is None]
        document = {
            "put": [one for one in sessions[:_MOST_SAVED] if one != self._kept.get(one.id)],
            "drop": sorted(self._dropped | old),
            "shown": self.shown,
            "pending": [SavedTurn(one.prompt, one.files) for one in lives if one is not None],
        }
        return msgspec.json.encode(document).decode().replace("<", "\\u003c")
