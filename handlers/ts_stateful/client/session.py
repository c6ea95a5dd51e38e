"""A session of a server, as its client holds it.

Owns the numbering of turns, the closing, and what a session's history allows: forks and going back. A turn itself is a `Reply`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.errors import ClientError
from ts_stateful.client.images import ImageSource, wire_images
from ts_stateful.client.reply import Reply
from ts_stateful.client.turns import TurnCounter
from ts_stateful.client.uploads import Carrier
from ts_stateful.protocol.answers import (
    Cancelled,
    Closed,
    Forked,
    Opened,
    Rewound,
    SessionInfo,
    TurnAnswer,
    Usage,
)
from ts_stateful.protocol.errors import (
    SessionClosed,
    SessionError,
    SessionExists,
    SessionNotFound,
    StatefulError,
)
from ts_stateful.protocol.requests import Cancel, Close, Continue, Fork, Image, Info, Prompt, Rewind
from ts_stateful.protocol.session_ids import check_session_id, new_session_id

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["PromptOptions", "Session"]


class PromptOptions(TypedDict, total=False):
    """How a reply is generated; the server's defaults apply to what is left out."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: str | tuple[str, ...]
    ignore_eos: bool


class Session:
    """An open session; leaving its `with` block closes it on the server.

    One client at a time: turns are numbered here, and a second client of the same session would number them alike.
    `opened` is the server's answer to `open` or `fork`, None for a session that was attached to. `num_reopened` counts how
    often it was opened again; its id is another one then. `first_images` were too large to go with `open`: turn 1 has them.
    """

    def __init__(
        self,
        calls: Calls,
        session_id: str,
        *,
        opened: Opened | None,
        num_turns: int | None,
        reopen: Callable[[float], Opened] | None = None,
        first_images: Sequence[Image] = (),
    ) -> None:
        self.session_id = session_id
        self.opened = opened
        self.num_reopened = 0
        self._calls = calls
        self._reopen = reopen
        self._turns = TurnCounter(self.info, num_turns)
        self._carrier = Carrier(calls, first_images)
        self._closed = False

    def prompt(
        self,
        prompt: str,
        *,
        images: Iterable[ImageSource] = (),
        stream: bool = True,
        timeout_s: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> Reply:
        """One turn. Iterate over the reply for its pieces as they come; nothing is sent before that.

        `timeout_s` bounds the whole turn. The loop raises `StatefulError` for what the server refuses and `ClientError` for
        what goes wrong on the way; broken connections are resumed within the deadline. Images that are too large for a request
        go ahead in parts.
        """
        if isinstance(options.get("stop"), list):
            options["stop"] = tuple(options["stop"])
        command = Prompt(
            session_id=self.session_id,
            prompt=prompt,
            images=wire_images(images),
            stream=stream,
            **options,
        )
        reopen = None if self._reopen is None else self._opened_again
        return Reply(self._calls, self._turns, command, timeout_s, self._carrier, reopen)

    def ask(
        self,
        prompt: str,
        *,
        images: Iterable[ImageSource] = (),
        timeout_s: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> str:
        """One turn, its text in one piece."""
        return self.prompt(
            prompt, images=images, stream=False, timeout_s=timeout_s, **options
        ).result()

    def continue_(
        self, turn: int, after: int = 0, *, wait_ms: int = 0, timeout_s: float | None = None
    ) -> TurnAnswer:
        """What a turn has produced behind its first `after` characters; `more` says whether it goes on."""
        command = Continue(session_id=self.session_id, turn=turn, after=after, wait_ms=wait_ms)
        return self._calls.call(command, TurnAnswer, timeout_s)

    def cancel(self, timeout_s: float | None = None) -> Cancelled:
        """Ends the turn in progress, if there is one; what was generated is kept."""
        return self._calls.call(Cancel(session_id=self.session_id), Cancelled, timeout_s)

    def fork(
        self,
        *,
        at_turn: int | None = None,
        session_id: str | None = None,
        ttl_s: float | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        timeout_s: float | None = None,
    ) -> Session:
        """A new session with the history of this one up to its last committed turn, or to turn `at_turn`.

        Each of the two then goes its own way and is closed by itself. Without `metadata` the new one has that of this one.

        Raises:
            StatefulError: the server refuses, for instance `TooManySessions` or, for a turn that there is not, `TurnGap`.
            ClientError: the server could not be asked, or not in time.
        """
        # Made here for the same reason as in `Server.open`: a fork whose answer was lost can be repeated.
        name = new_session_id() if session_id is None else check_session_id(session_id)
        command = Fork(
            session_id=self.session_id,
            new_session_id=name,
            at_turn=at_turn,
            ttl_s=ttl_s,
            metadata=None if metadata is None else dict(metadata),
        )
        lost = partial(self._forked_unheard, command, timeout_s)
        applied = (SessionExists, lost) if session_id is None else None
        forked = self._calls.call(command, Forked, timeout_s, applied=applied)
        return Session(
            self._calls,
            forked.session_id,
            opened=forked,
            num_turns=forked.turn,
            first_images=self._carrier.first,
        )

    def _forked_unheard(self, command: Fork, timeout_s: float | None) -> Forked:
        """What the lost answer to a `fork` said; see `Server.open`."""
        name = str(command.new_session_id)
        try:
            info = Session(self._calls, name, opened=None, num_turns=None).info(timeout_s)
        except SessionNotFound:
            again = msgspec.structs.replace(command, new_session_id=new_session_id())
            return self._calls.call(again, Forked, timeout_s)
        usage = Usage(prompt_tokens=info.tokens)
        return Forked(name, info.expires_at, usage, self.session_id, info.turns)

    def rewind(self, to_turn: int, timeout_s: float | None = None) -> Rewound:
        """Forgets every turn behind turn `to_turn`; 0 is the session as it was opened.

        Raises:
            TurnGap: there is no such turn, or a turn is in progress or waiting.
            StatefulError, ClientError: as everywhere.
        """
        self._turns.forget()
        command = Rewind(session_id=self.session_id, to_turn=to_turn)
        rewound = self._calls.call(command, Rewound, timeout_s)
        self._turns.reset(rewound.turn)
        return rewound

    def info(self, timeout_s: float | None = None) -> SessionInfo:
        """The figures of the session."""
        return self._calls.call(Info(session_id=self.session_id), SessionInfo, timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Ends the session on the server; a second time does nothing."""
        if self._closed:
            return
        self._calls.call(
            Close(session_id=self.session_id),
            Closed,
            timeout_s,
            applied=(SessionClosed, lambda: Closed(self.session_id)),
        )
        self._closed = True

    def _opened_again(self, lost_id: str, timeout_s: float) -> str:
        """The id of the session that takes the place of the one that has ended; there is one for all replies to that."""
        assert self._reopen is not None
        if lost_id != self.session_id:
            self._turns.forget()  # the reply had a number of the old one's
            return self.session_id
        self.opened = self._reopen(timeout_s)
        self.session_id = self.opened.session_id
        self.num_reopened += 1
        self._turns.reset(0)
        return self.session_id

    def __enter__(self) -> Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # A session that has ended by itself is closed enough; and nothing may hide the error that ended the block.
        hidden = (SessionError,) if error is None else (ClientError, StatefulError)
        with contextlib.suppress(*hidden):
            self.close()
