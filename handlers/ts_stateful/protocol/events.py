"""Requests to an engine and its events, which frontend, process and engine share."""

from __future__ import annotations

import enum

from msgspec import Struct

from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.chat import AnyRequest, Recall, Respond
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.logprobs import TokenLogprob
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Close, Fork, Prompt

__all__ = ["Encoding", "Event", "EventKind", "Submit"]


class Encoding(enum.Enum):
    """The form of the answer to a `step`."""

    JSON = "json"
    RAW = "raw"  # the elements of one output, and nothing else
    PACKED = "packed"  # a `PackedAnswer`


class Submit(Struct, frozen=True, tag="submit"):
    """Worker to engine: a request.

    - `attachments`: the file parts of a multipart form, after `command.images`; of a `step`, the elements of its inputs, whose
      shapes are `shapes`.
    - `creates_session`: the request opens a session under `command.session_id`, a `fork` under `new_session_id`. Of a `step`:
      the worker has no session of this id.
    - `may_begin`: a `step` may begin a sequence. False: the server drains, and cannot tell if the id is that of an open one.
    - `may_wait`: the session that it opens may wait for a place. False: there are other engines to ask.
    - `ephemeral`: the session ends with the answer.
    - `pull`: answer once, at once, with `more`; the client fetches the rest with `continue`.
    - `is_retry`: an engine that died had this request before. The client has `skip` characters of its reply; `replay` are the
      token ids that the worker has received, `replay_logprobs` their log-probabilities if the request asks for them.
    - `encoding`: the form of the answer to a `step`.
    - `profile`: the profile of the frontend that received the request.
    - `num_bytes`: the bytes of the client's request.
    - `affinity`: of a request without a session, its name and that of the request before it in the same conversation. A text
      has three or more. Others may begin alike, so it leaves an engine that is much busier than another.
    - `choices`: the number of replies that the client wants; engines get a request for each.
    - `principal`: the tenant that sends the request; None without `handler.auth`. Session ids are then the client's own, else
      those of `protocol.tenants`.
    """

    request_id: str
    command: AnyRequest
    attachments: tuple[bytes, ...] = ()
    creates_session: bool = False
    may_begin: bool = True
    may_wait: bool = True
    ephemeral: bool = False
    pull: bool = False
    is_retry: bool = False
    skip: int = 0
    replay: tuple[int, ...] = ()
    replay_logprobs: tuple[TokenLogprob, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    encoding: Encoding = Encoding.JSON
    profile: Profile = Profile.CONTINUOUS
    num_bytes: int = 0
    affinity: tuple[str, ...] = ()
    choices: int = 1
    principal: str | None = None

    @property
    def session_ids(self) -> tuple[str, ...]:
        """The sessions that the request needs; the new one of a `fork` comes last."""
        command = self.command
        ids = [command.session_id]
        if isinstance(command, Fork) or (isinstance(command, Respond) and self.is_retry):
            ids.append(command.new_session_id)
        return tuple(session_id for session_id in ids if session_id is not None)

    @property
    def erases(self) -> bool:
        """Return True if the store must have nothing of the session afterwards, whatever it has."""
        return isinstance(self.command, Close) and self.command.erase

    @property
    def streams(self) -> bool:
        """Return True if the answer is a stream of events."""
        return isinstance(self.command, Prompt | Recall) and self.command.stream

    @property
    def background(self) -> bool:
        """Return True if the turn goes on when its client disconnects."""
        return isinstance(self.command, Respond) and self.command.background


class EventKind(enum.Enum):
    """The kind of an event."""

    # There is no text yet, but the status will be 200 unless a failure follows.
    ACCEPTED = "accepted"
    PART = "part"  # one streamed document; more follow
    LAST = "last"  # the terminal document: the answer, the last streamed event, or an error
    PROGRESS = "progress"  # for the worker alone: `token_ids`
    ADOPTED = "adopted"  # for the worker alone: the session came from the store; before any answer
    CHOICE = "choice"  # the terminal document of one of several replies, of which others are open
    OVER = "over"  # for the worker alone: the turn ended after a `LAST` with `more`


class Event(Struct, frozen=True, tag="event"):
    """Engine to worker: a part of an answer. Every request gets exactly one `LAST`.

    - `body`: one JSON document (for an `ACCEPTED` empty, or a `Recalled`), or a raw answer of type `content_type`.
    - `session_id`: the session that the request named or opened.
    - `opened_until` (Unix seconds): set on every event of a request that opened a session. `closed`: set on the answer to
      `close`. Both become session headers over HTTP.
    - `num_chars`: characters of the reply in `body`.
    - `token_ids`: ids of the reply that no earlier event had, and `logprobs` of each if the request asks for them. A new engine
      needs them to resume the turn.
    - `choice`: the index of the reply, if there are several.
    - `turn`: the number of the turn, where it is known; else 0.
    - `more`: the turn goes on after this `LAST`, until an `OVER`.
    """

    request_id: str
    kind: EventKind
    body: bytes = b""
    status: int = 200
    session_id: str | None = None
    opened_until: int | None = None
    closed: bool = False
    num_chars: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    more: bool = False
    choice: int = 0
    turn: int = 0
    content_type: str | None = None

    @classmethod
    def refusal(cls, request_id: str, error: StatefulError) -> Event:
        """Return the terminal answer to a request that failed."""
        return cls(request_id, EventKind.LAST, encode(error.to_body()), error.status)

    @property
    def ends(self) -> bool:
        """Return True if no other event of this request follows."""
        return self.kind is EventKind.OVER or (self.kind is EventKind.LAST and not self.more)
