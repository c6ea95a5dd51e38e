"""Sessions: their turns, forks, rewinds and end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from secrets import randbits
from typing import TYPE_CHECKING, Any, TypedDict

from ts_stateful.client.errors import ClientError
from ts_stateful.client.images import ImageSource, wire_audio, wire_images
from ts_stateful.client.open_session import OpenSession, open_under_new_id
from ts_stateful.client.reply import Reply
from ts_stateful.protocol.answers import (
    Cancelled,
    Closed,
    Forked,
    Opened,
    Rewound,
    SessionInfo,
    TurnAnswer,
)
from ts_stateful.protocol.errors import (
    SessionClosed,
    SessionError,
    StatefulError,
)
from ts_stateful.protocol.requests import Cancel, Close, Continue, Fork, Prompt, Rewind
from ts_stateful.protocol.response_format import ResponseFormat
from ts_stateful.protocol.session_ids import check_session_id

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["PromptOptions", "Session"]


class PromptOptions(TypedDict, total=False):
    """Settings of generation; the server's defaults apply to the missing ones."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    response_format: ResponseFormat | Mapping[str, Any]
    logprobs: bool
    top_logprobs: int


class Session(contextlib.AbstractContextManager["Session"]):
    """An open session; leaving its `with` block closes it on the server.

    Only one client may use it: turns are numbered here, and a second client would use the same numbers. Only one thread at a
    time may use it, except for `cancel`: numbers of turns that race to the server are refused as `TurnGap`.
    """

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._calls = session.calls
        self._closed = False

    @property
    def session_id(self) -> str:
        """Return the id, another one after the session was opened again."""
        return self._session.session_id

    @property
    def opened(self) -> Opened | None:
        """Return the server's answer to `open` or `fork`; None for a session that was attached to."""
        return self._session.opened

    @property
    def num_reopened(self) -> int:
        """Return how often the session was opened again."""
        return self._session.num_reopened

    def prompt(
        self,
        prompt: str,
        *,
        images: Iterable[ImageSource] = (),
        audio: Iterable[ImageSource] = (),
        stream: bool = True,
        timeout_s: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> Reply:
        """Begin a turn. Iterate over the reply for its pieces as they come; nothing is sent before that.

        `timeout_s` bounds the whole turn. The loop raises `StatefulError` if the server refuses and `ClientError` if the
        connection fails; a broken connection is resumed within the deadline. Files that are too large for a request are
        uploaded in parts before it.
        """
        if options.get("temperature") and options.get("seed") is None:
            options["seed"] = randbits(63)  # of this turn, also if it is sent again
        command = Prompt(  # lists and mappings are encoded as they are
            session_id=self.session_id,
            prompt=prompt,
            images=wire_images(images),
            audio=wire_audio(audio),
            stream=stream,
            **options,  # type: ignore[arg-type]
        )
        return Reply(self._session, command, timeout_s)

    def ask(
        self,
        prompt: str,
        *,
        images: Iterable[ImageSource] = (),
        audio: Iterable[ImageSource] = (),
        timeout_s: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> str:
        """Run one turn and return its text in one piece."""
        return self.prompt(
            prompt, images=images, audio=audio, stream=False, timeout_s=timeout_s, **options
        ).result()

    def continue_(
        self, turn: int, after: int = 0, *, wait_ms: int = 0, timeout_s: float | None = None
    ) -> TurnAnswer:
        """Return a turn's text after its first `after` characters; `more` is True while the turn goes on."""
        command = Continue(session_id=self.session_id, turn=turn, after=after, wait_ms=wait_ms)
        return self._calls.call(command, TurnAnswer, timeout_s)

    def cancel(self, timeout_s: float | None = None) -> Cancelled:
        """End the turn in progress, if there is one; its text until then is kept."""
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
        """Open a new session with the history of this one up to its last committed turn, or to turn `at_turn`.

        The two are then independent, and each is closed by itself. Without `metadata` the new one has that of this one.

        Raises:
            StatefulError: the server refuses, for instance `TooManySessions`, or `TurnGap` if there is no such turn.
            ClientError: the server could not be asked, or not in time.
        """
        command = Fork(
            session_id=self.session_id,
            new_session_id=None if session_id is None else check_session_id(session_id),
            at_turn=at_turn,
            ttl_s=ttl_s,
            metadata=None if metadata is None else dict(metadata),
        )
        if session_id is None:
            forked = open_under_new_id(self._calls, command, timeout_s)
        else:
            forked = self._calls.call(command, Forked, timeout_s)
        first_media = self._session.uploads.first
        return Session(OpenSession(self._calls, forked.session_id, forked, first_media=first_media))

    def rewind(self, to_turn: int, timeout_s: float | None = None) -> Rewound:
        """Drop every turn after turn `to_turn`; 0 is the session as it was opened.

        Raises:
            TurnGap: there is no such turn, or a turn is in progress or waiting.
            StatefulError, ClientError: see `prompt`.
        """
        self._session.forget_turns()
        command = Rewind(session_id=self.session_id, to_turn=to_turn)
        rewound = self._calls.call(command, Rewound, timeout_s)
        self._session.num_turns = rewound.turn
        return rewound

    def info(self, timeout_s: float | None = None) -> SessionInfo:
        """Return the statistics of the session."""
        return self._session.info(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """End the session on the server; a second call does nothing."""
        if self._closed:
            return
        self._calls.call(
            Close(session_id=self.session_id),
            Closed,
            timeout_s,
            applied=(SessionClosed, lambda: Closed(self.session_id)),
        )
        self._closed = True

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # A session that has ended needs no close, and no error may hide the one that ended the block.
        hidden = (SessionError,) if error is None else (ClientError, StatefulError)
        with contextlib.suppress(*hidden):
            self.close()
