"""What can be done in a conversation, and what must come of it.

Owns the acts and how likely each is. An act raises if anything else comes of it than what it must; the conversation is then as
the server has it, and its user gives it up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from tests.soak.bad_requests import BAD_REQUESTS
from tests.soak.talk import Talk
from tests.soak.tally import check
from tests.soak.turns import converse, document_of, keep, past_in, past_of, settle
from tests.soak.user import Act, User
from ts_stateful.protocol.answers import Forked
from ts_stateful.protocol.errors import SessionClosed, SessionExpired, SessionNotFound

__all__ = ["acts_of"]

_MAX_TURNS = 8
_FOREVER = 4  # times as long: nobody is to hear the end of it


def ask(user: User, talk: Talk) -> None:
    """A turn that ends by itself, streamed or not."""
    converse(user, talk, user.script.question(), stream=user.script.chance(0.6))


def ask_long(user: User, talk: Talk) -> None:
    """A turn that goes on for a while."""
    converse(user, talk, user.script.long_question(), stream=user.script.chance(0.7))


def cancel(user: User, talk: Talk) -> None:
    """A stream that is cancelled after some pieces: it ends with what was generated, which stays."""
    said, state = user.script.long_question(), talk.state()
    reply = talk.session.prompt(said.prompt, **dict(said.options))
    pieces = user.script.rng.randint(1, 3)
    for number, _ in enumerate(reply, start=1):
        if number == pieces:
            reply.cancel()
    keep(user, talk, state, past_of(said, reply))


def stop_listening(user: User, talk: Talk) -> None:
    """A loop over a reply that is left: the client library cancels the turn."""
    said = user.script.long_question()
    with talk.session.prompt(said.prompt, **dict(said.options)) as reply:
        next(iter(reply))
    settle(user, talk, said)


def hang_up(user: User, talk: Talk) -> None:
    """A connection that breaks off in mid-stream: its client comes back, cancels the turn, or never asks again."""
    said, state = user.script.long_question(_FOREVER), talk.state()
    document = document_of(said, talk, stream=True)
    heard = user.raw.hear(document, talk.session_id, num_events=user.script.rng.randint(1, 3))
    then = user.script.rng.choice(("comes back", "cancels", "walks away"))
    if then == "comes back":
        whole = user.raw.hear(document, talk.session_id)
        assert whole.last is not None
        check(whole.text.startswith(heard.text), f"{whole.text!r} began as {heard.text!r}")
        keep(user, talk, state, past_in(said, whole.last, whole.text))
        user.attach(talk)
        return
    user.attach(talk)
    if then == "cancels":
        talk.session.cancel()
    settle(user, talk, said)


def pull_and_leave(user: User, talk: Talk) -> None:
    """A turn over gRPC whose client never asks for the rest."""
    said = user.script.long_question(_FOREVER)
    answer = user.raw.pull_and_leave(document_of(said, talk, stream=True), talk.session_id)
    check(answer.get("more") is True, f"a pulled turn was answered by {answer}")
    user.attach(talk)
    settle(user, talk, said)


def twins(user: User, talk: Talk) -> None:
    """The same turn twice at the same time: one turn, two answers."""
    said, state = replace(user.script.question(), pictures=()), talk.state()
    document = document_of(said, talk)
    with ThreadPoolExecutor(1) as pool, user.tally.timed("turn, twice at once"):
        stream = {**document, "stream": True}
        streamed = pool.submit(user.raw.hear, stream, talk.session_id)
        whole = user.raw.ask(document, talk.session_id)
        heard = streamed.result()
    check(heard.text == whole["text"], f"one was told {heard.text!r}, the other {whole['text']!r}")
    keep(user, talk, state, past_in(said, whole, whole["text"]))
    user.attach(talk)


def ask_again(user: User, talk: Talk) -> None:
    """A turn that was answered already, by its number: the same answer, from the record."""
    number = _some_turn(user, talk)
    past = talk.past[number - 1]
    with user.tally.timed("turn, from its record"):
        answer = user.raw.ask({"prompt": past.said.prompt, "turn": number}, talk.session_id)
    check(answer.get("replayed") is True, f"turn {number} was done again: {answer}")
    again = past_in(past.said, answer, answer["text"])
    check(again == past, f"turn {number} was {past} and is {again}")


def read_record(user: User, talk: Talk) -> None:
    """What a turn has said, behind some characters."""
    number = _some_turn(user, talk)
    past = talk.past[number - 1]
    after = user.script.rng.randint(0, len(past.text))
    with user.tally.timed("continue"):
        answer = talk.session.continue_(number, after)
    told = (answer.text, answer.finish_reason, answer.more)
    check(
        told == (past.text[after:], past.finish_reason, False), f"{told} behind {after} of {past}"
    )


def inform(user: User, talk: Talk) -> None:
    """The figures of the session are those of the conversation."""
    with user.tally.timed("info"):
        info = talk.session.info()
    pictures = sum(len(past.said.pictures) for past in talk.past)
    if talk.past or not talk.uploads:
        pictures += len(talk.opening.pictures)
    check(
        (info.turns, info.images, info.running, info.waiting, info.saved)
        == (len(talk.past), pictures, False, 0, True),
        f"{info}, but there were {len(talk.past)} turns and {pictures} pictures",
    )


def fork(user: User, talk: Talk) -> None:
    """Another conversation with the same beginning."""
    at_turn = user.script.rng.randint(0, len(talk.past)) if user.script.chance(0.5) else None
    with user.tally.timed("fork"):
        session = talk.session.fork(at_turn=at_turn)
    past = talk.past[:at_turn]
    assert isinstance(session.opened, Forked)
    check(session.opened.turn == len(past), f"a fork at {at_turn} stands at {session.opened}")
    user.talks.append(Talk(f"{talk.name}'", session, talk.opening, past, uploads=talk.uploads))


def rewind(user: User, talk: Talk) -> None:
    """Back to an earlier turn, or to none."""
    to_turn = user.script.rng.randint(0, len(talk.past))
    with user.tally.timed("rewind"):
        rewound = talk.session.rewind(to_turn)
    check(rewound.turn == to_turn, f"went back to {to_turn}, and is at {rewound}")
    talk.past = talk.past[:to_turn]


def send_nonsense(user: User, talk: Talk) -> None:
    """A request that is wrong gets its error and changes nothing."""
    bad = user.script.rng.choice(BAD_REQUESTS)
    with user.tally.timed("bad request"):
        code = user.raw.refused(talk.session_id, **bad.options)
    ends = SessionExpired, SessionNotFound, SessionClosed
    gone = {error.code: error for error in ends}.get(code)
    if gone is not None:
        raise gone(f"told to {bad.name}")
    check(code == bad.code, f"{bad.name} got {code or 'an answer'} and not {bad.code}")
    user.tally.count("errors asked for", code)


def ask_the_dead(user: User, talk: Talk) -> None:
    """A session that is over says so, and how; one that never was is not found."""
    over = [(name, code) for name, at, code in user.gone if time.monotonic() > at]
    name, code = user.script.rng.choice([*over, ("never-opened", "session_not_found")])
    told = user.raw.refused(name, document={"type": "info"})
    allowed = user.codes_of_expired if code == SessionExpired.code else {code}
    check(told in allowed, f"{name} is {told or 'open'}, and should be {code}")
    user.tally.count("errors asked for", told)


def use_an_id_again(user: User, talk: Talk) -> None:
    """The id of a session that was closed can be that of another one."""
    closed = [
        each for each in user.gone if each[2] == "session_closed" and each[0].startswith("soak-")
    ]
    if closed and not user.is_full:
        chosen = user.script.rng.choice(closed)
        user.gone.remove(chosen)
        user.open(chosen[0])


def leave(user: User, talk: Talk) -> None:
    """Never comes back to a session that ends by itself."""
    if talk.ended_at is not None:
        user.end(talk, "session_expired")


def close(user: User, talk: Talk) -> None:
    """Ends the conversation."""
    user.close(talk)


def close_in_mid_stream(user: User, talk: Talk) -> None:
    """Ends it while a turn is running."""
    user.raw.hear(
        document_of(user.script.long_question(), talk, stream=True), talk.session_id, num_events=1
    )
    user.close(talk)


_ACTS: Final[Mapping[str, tuple[int, Act]]] = {
    "ask": (36, ask),
    "ask long": (8, ask_long),
    "cancel": (4, cancel),
    "stop listening": (3, stop_listening),
    "hang up": (5, hang_up),
    "pull and leave": (2, pull_and_leave),
    "twins": (4, twins),
    "ask again": (5, ask_again),
    "read record": (6, read_record),
    "inform": (5, inform),
    "fork": (5, fork),
    "rewind": (4, rewind),
    "send nonsense": (7, send_nonsense),
    "ask the dead": (2, ask_the_dead),
    "use an id again": (2, use_an_id_again),
    "leave": (4, leave),
    "close": (5, close),
    "close in mid-stream": (1, close_in_mid_stream),
}
_NEW_TURN = {ask, ask_long, cancel, stop_listening, hang_up, pull_and_leave, twins}
_PLAIN = {hang_up, pull_and_leave, twins, close_in_mid_stream}  # by requests that have no pictures
_OLD_TURN = {ask_again, read_record}


def acts_of(profile: str) -> dict[str, tuple[int, Act]]:
    """The acts that make sense in a profile, each with its weight."""
    without = set() if profile == "continuous" else {"pull and leave"}
    return {
        name: (weight, _fitting(act))
        for name, (weight, act) in _ACTS.items()
        if name not in without
    }


def _fitting(act: Act) -> Act:
    """The act, or another one where the conversation is too long, too short, or one too many."""

    def fitting(user: User, talk: Talk) -> None:
        if act in _NEW_TURN and len(talk.past) >= _MAX_TURNS:
            rewind(user, talk)
        elif act is fork and user.is_full:
            close(user, talk)
        elif (act in _OLD_TURN and not talk.past) or (act in _PLAIN and talk.uploads):
            ask(user, talk)
        else:
            act(user, talk)

    return fitting


def _some_turn(user: User, talk: Talk) -> int:
    return user.script.rng.randint(1, len(talk.past))
