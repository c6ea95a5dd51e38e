"""Turns of a conversation, as acts take them: asked for, committed, or left to themselves.

Owns what must come of a turn. What is done with one in mid-stream is in `acts`.
"""

from __future__ import annotations

import time
from typing import Any

from tests.soak.plan import DEADLINE_S
from tests.soak.raw import Document
from tests.soak.talk import Past, Said, Talk, picture
from tests.soak.tally import Wrong, check
from tests.soak.user import User
from ts_stateful.client import Reply

__all__ = ["converse", "document_of", "keep", "past_in", "past_of", "settle"]

_POLL_S = 0.1


def converse(user: User, talk: Talk, said: Said, *, stream: bool) -> None:
    """A turn by the client library, up to its end."""
    state = talk.state()
    images = [picture(number) for number in said.pictures]
    reply = talk.session.prompt(said.prompt, images=images, stream=stream, **dict(said.options))
    with user.tally.timed(f"turn, {'streamed' if stream else 'whole'}"):
        reply.result()
    check(reply.turn == len(talk.past) + 1, f"turn {len(talk.past) + 1} was called {reply.turn}")
    past = past_of(said, reply)
    check(past.finish_reason in ("stop", "length"), f"nobody has cancelled {past}")
    keep(user, talk, state, past)
    assert reply.timing is not None
    user.tally.count("turns found their states", reply.timing.restored_from or "resident")


def keep(user: User, talk: Talk, state: str, past: Past) -> None:
    """The turn is committed."""
    talk.past = [*talk.past, past]
    user.shared.answers.check(state, past)
    user.tally.count("tokens", "generated", past.num_tokens)


def settle(user: User, talk: Talk, said: Said) -> None:
    """Waits until nothing runs in a session, and takes in what has become of a turn for which nobody has waited."""
    state, deadline = talk.state(), time.monotonic() + DEADLINE_S
    while (info := talk.session.info()).running or info.waiting:
        check(time.monotonic() < deadline, f"a turn that nobody waits for goes on: {info}")
        time.sleep(_POLL_S)
    number = len(talk.past) + 1
    check(
        info.turns in (number - 1, number), f"there are {info.turns} turns, and were {number - 1}"
    )
    user.tally.count("turns left alone", "committed" if info.turns == number else "rolled back")
    if info.turns == number:
        answer = talk.session.continue_(number)
        assert answer.usage is not None
        reason, tokens = str(answer.finish_reason), answer.usage.completion_tokens
        keep(user, talk, state, Past(said, answer.text, reason, tokens))


def document_of(said: Said, talk: Talk, **fields: Any) -> Document:
    """The next turn as a request without the client library; its pictures are left out."""
    return {"prompt": said.prompt, "turn": len(talk.past) + 1, **dict(said.options), **fields}


def past_of(said: Said, reply: Reply) -> Past:
    """The turn that a reply is, which must have ended."""
    if reply.finish_reason is None or reply.usage is None:
        raise Wrong(f"a reply ended without its end: {reply.text!r}")
    return Past(said, reply.text, reply.finish_reason, reply.usage.completion_tokens)


def past_in(said: Said, document: Document, text: str) -> Past:
    """The turn of which this is the answer, or the last event."""
    tokens = document["usage"]["completion_tokens"]
    return Past(said, text, document["finish_reason"], tokens)
