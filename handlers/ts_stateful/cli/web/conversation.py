"""A session as a page shows it: its turns, the reply in progress, and what went wrong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.cli.web.live_reply import Continuation, LiveReply
from ts_stateful.cli.web.saved import SavedSession, SavedTurn, SessionState, state_after
from ts_stateful.client import ClientError, PromptOptions, Server, Session
from ts_stateful.clock import SYSTEM_CLOCK
from ts_stateful.protocol.errors import SessionError, StatefulError, TurnGap

__all__ = ["QUICK_S", "Conversation", "Question"]

QUICK_S = 5.0
"""Seconds for what is no turn, so that a page never hangs."""

_Turn = TypeVar("_Turn")
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """A prompt with its files, by kind, and the settings of its reply. `system` counts where it opens the session."""

    prompt: str
    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    options: PromptOptions | None = None
    system: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Return the sources of all files."""
        return (*self.images, *self.audio)


class Conversation:
    """A session, opened by its first prompt. Methods that ask the server raise `StatefulError` or `ClientError`.

    `exchanges` are its turns by number, `tokens` the length of its history, `saved` what the browser keeps. They
    are replaced, never changed: other threads draw them.
    """

    def __init__(self, server: Server, saved: SavedSession | None = None) -> None:
        self._server = server
        self._session: Session | None = None
        self.saved = saved
        self.tokens = 0
        self.live: LiveReply | None = None
        self._finishing = threading.Lock()
        self.error: Exception | None = None
        self.is_read = saved is None  # from the server
        turns = () if saved is None else saved.turns
        self._questions: Mapping[int, SavedTurn] = dict(enumerate(turns, start=1))
        self.exchanges: Mapping[int, Exchange] = {
            number: Exchange(turn.prompt, "", turn.files)
            for number, turn in self._questions.items()
        }

    @property
    def state(self) -> SessionState:
        """Return `open` unless the server reported the session's end."""
        return "open" if self.saved is None else self.saved.state

    def take(self, saved: SavedSession) -> None:
        """Take what another tab has saved of the session, unless it is older."""
        if self.saved is not None and saved.at >= self.saved.at and saved != self.saved:
            self.saved, self._questions = saved, dict(enumerate(saved.turns, start=1))
            self.exchanges = _up_to(len(saved.turns), self.exchanges)

    def ask(self, question: Question) -> LiveReply:
        """Begin a turn, and return its reply, which `finish` takes when it has ended."""
        live = LiveReply(question.prompt, question.files)
        self._start(live, lambda: self._answer(live, question))
        self._save()
        return live

    def _start(self, live: LiveReply, work: Callable[[], None]) -> None:
        self.error, self.live = None, live
        threading.Thread(target=_run, args=(live, work), name="reply", daemon=True).start()

    def _answer(self, live: LiveReply, question: Question) -> None:
        session = self._opened(question.system)
        options = question.options or PromptOptions()
        live.read(
            session.prompt(question.prompt, images=question.images, audio=question.audio, **options)
        )

    def _opened(self, system: str | None = None, timeout_s: float | None = None) -> Session:
        if self._session is None:
            if self.saved is None:
                self._session = self._server.open(system=system, timeout_s=timeout_s)
                self._save()
            else:
                self._session = self._server.attach(self.saved.id, timeout_s)
        return self._session

    def finish(self) -> LiveReply | None:
        """Take the reply that has ended; return it if there is one that no other thread has taken."""
        with self._finishing:
            return self._finish()

    def _finish(self) -> LiveReply | None:
        live = self.live
        if live is None or not live.has_ended:
            return None
        if live.exchange is not None and live.turn is not None:
            self.exchanges = {**self.exchanges, live.turn: live.exchange}
            asked = SavedTurn.cut(live.prompt, live.files)
            self._questions = {**self._questions, live.turn: asked}
            if usage := live.exchange.usage:
                self.tokens = usage.prompt_tokens + usage.completion_tokens
        if live.error is not None:
            self.failed(live.error)
        self.live = None  # last: who draws meanwhile follows it to here
        self._save()
        return live

    def failed(self, error: Exception) -> None:
        """Show an error; one that ends the session marks it."""
        self.error = error
        self.is_read &= not isinstance(error, TurnGap)  # another client has asked in the session
        state = state_after(error) if isinstance(error, SessionError) else None
        if self.saved is not None and state is not None:
            self.is_read = True  # as far as it can be
            self.saved = msgspec.structs.replace(self.saved, state=state)

    def cancel(self) -> None:
        """End the reply in progress; its text until then stays."""
        live, session = self.live, self._session
        if live is not None:
            live.cancel()
            if session is not None:
                session.cancel(QUICK_S)

    def restore(self) -> None:
        """Read the turns of the session from the server. A turn in progress goes on."""
        assert self.saved is not None
        if not isinstance(self.error, TurnGap):
            self.error = None
        session = self._server.attach(self.saved.id, QUICK_S)
        info = session.info(QUICK_S)
        exchanges = {}
        for number in range(1, info.turns + 1):
            answer = session.continue_(number, timeout_s=QUICK_S)
            asked = self._asked(number)
            exchanges[number] = Exchange(
                asked.prompt,
                answer.text,
                asked.files,
                answer.finish_reason,
                answer.usage,
                answer.timing,
            )
        running = self._asked(info.turns + 1)
        self._session, self.tokens, self.exchanges = session, info.tokens, exchanges
        self._questions = {number: self._asked(number) for number in exchanges}
        self.saved, self.is_read = msgspec.structs.replace(self.saved, state="open"), True
        if info.running:
            turn = info.turns + 1
            live = LiveReply(running.prompt, running.files)
            self._start(live, lambda: live.read(Continuation(session, turn)))

    def _asked(self, number: int) -> SavedTurn:
        return self._questions.get(number) or SavedTurn("")

    def fork(self, at_turn: int) -> Conversation:
        """Return a new session with the turns up to `at_turn`."""
        session = self._opened(timeout_s=QUICK_S).fork(at_turn=at_turn, timeout_s=QUICK_S)
        fork = Conversation(self._server)
        fork._session = session
        fork.exchanges = _up_to(at_turn, self.exchanges)
        fork._questions = _up_to(at_turn, self._questions)
        fork.tokens = session.opened.usage.prompt_tokens if session.opened else 0
        fork._save(fork_of=None if self.saved is None else self.saved.id)
        return fork

    def rewind(self, to_turn: int) -> str:
        """Drop the turns after `to_turn`; return the prompt of the first of them."""
        self.error = None
        rewound = self._opened(timeout_s=QUICK_S).rewind(to_turn, QUICK_S)
        dropped = rewound.turn + 1
        prompt = (self.exchanges.get(dropped) or self._asked(dropped)).prompt
        self.exchanges = _up_to(rewound.turn, self.exchanges)
        self._questions = _up_to(rewound.turn, self._questions)
        self.tokens = rewound.tokens
        self._save()
        return prompt

    def _save(self, fork_of: str | None = None) -> None:
        if self._session is None:
            return
        last = max(self._questions, default=0)
        turns = [self._asked(number) for number in range(1, last + 1)]
        if self.live is not None:
            turns.append(SavedTurn.cut(self.live.prompt, self.live.files))
        self.saved = SavedSession(
            id=self._session.session_id,
            at=SYSTEM_CLOCK.unix(),
            turns=tuple(turns),
            fork_of=fork_of if self.saved is None else self.saved.fork_of,
            state=self.state,
        )


def _up_to(turn: int, by_number: Mapping[int, _Turn]) -> dict[int, _Turn]:
    return {number: one for number, one in by_number.items() if number <= turn}


def _run(live: LiveReply, work: Callable[[], None]) -> None:
    try:
        work()
        live.end()
    except (ClientError, StatefulError, OSError) as error:
        live.end(error)
    except Exception as error:  # the boundary of a thread: the page would wait for ever
        _LOGGER.exception("a reply failed")
        live.end(error)
