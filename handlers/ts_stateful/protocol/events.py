"""What goes into an engine and what comes out of it: submitted requests and events.

Owns the two types that frontend, process and engine share. Knows nothing of how they travel.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import AnyRequest, Prompt

__all__ = ["Event", "EventKind", "Submit"]


class Submit(Struct, frozen=True, tag="submit"):
    """Worker to engine: a request.

    `attachments` are the file parts of a multipart form, images that follow `command.images`. `opens` says that the request
    opens a session: under `command.session_id`, and a `fork` under its `new_session_id`; `alone` that this session ends with
    the answer. After an engine's death, `again` says that an engine has had the request before, `skip` is the number of
    characters of the reply that the client has got, and `replay` are the ids of the reply that were chosen, as far as is known.
    `pull` asks for one answer at once, with `more`, instead of events: the rest is fetched with `continue`. For a `step`,
    `attachments` are the elements of its inputs and `shapes` theirs; `opens` says that no session of this id is known, and
    `raw` that the answer is no JSON. `profile` is that of the frontend which the request came by.
    """

    request_id: str
    command: AnyRequest
    attachments: tuple[bytes, ...] = ()
    opens: bool = False
    alone: bool = False
    pull: bool = False
    again: bool = False
    skip: int = 0
    replay: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    raw: bool = False
    profile: Profile = Profile.CONTINUOUS

    @property
    def streams(self) -> bool:
        """Whether the client takes the answer as events."""
        return isinstance(self.command, Prompt) and self.command.stream


class EventKind(enum.Enum):
    """What an event is to its request."""

    # Nothing to say yet, but the answer will be a 200 unless something breaks.
    ACCEPTED = "accepted"
    PART = "part"  # one streamed document; more follow
    LAST = "last"  # the terminal document: the answer, the last streamed event, or an error
    PROGRESS = "progress"  # for the worker alone: `token_ids`
    OVER = "over"  # for the worker alone: the turn behind a `LAST` with `more` has come to its end


class Event(Struct, frozen=True, tag="event"):
    """Engine to worker: something about a request. Every request gets exactly one `LAST`.

    `body` is one JSON document (empty for `ACCEPTED`), or a raw answer of the type `content_type`. `session_id` is the session
    that a request was about, or has opened. `opened_until` (Unix seconds, UTC) is set on every event of a request that opened a
    session, `closed` on the answer to `close`: both become session headers over HTTP. `num_chars` counts the characters of the
    reply in `body`. `token_ids` are those of the reply of which no event had told before: with them the turn is taken up where
    it stood if the engine dies. `more` says that the turn goes on behind this `LAST`, until an `OVER`.
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
    more: bool = False
    content_type: str | None = None
