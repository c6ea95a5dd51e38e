"""Forks and rewinds of a conversation about a real image, in every profile, over every transport."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.server import ENDLESS
from tests.e2e.speak import HEADER, SCENE, Speaker, error_of
from ts_stateful.client import Session, connect
from ts_stateful.protocol.errors import SessionExists, TurnGap
from ts_stateful.serving.server import LocalServer

COUNT = "How many questions have I asked?"
IT = "What color is it?"


@pytest.fixture(params=["continuous", "sequence", "async", "asgi"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """Every profile in turn."""
    server: LocalServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def speaker(server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Speaker:
    """Plain HTTP and gRPC to that server."""
    return speak(server)


def says(session: Session, question: str, answer: str) -> None:
    """One turn; what was computed for the history is used."""
    reply = session.prompt(question)
    assert reply.result() == answer
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details.cached_tokens > 64  # the image, at least


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_conversation_forks_and_goes_back(server: LocalServer, transport: str) -> None:
    """Each knows what was said in it, and nothing of what was said in the other or taken back."""
    url = server.grpc_url if transport == "grpc" else server.http_url
    with connect(url) as connection, connection.open(images=[SCENE]) as session:
        says(session, "How many shapes are there?", "three")
        says(session, "What color is the circle?", "red")
        with session.fork() as fork:
            says(session, "Which shape is yellow?", "triangle")
            says(fork, "Which shape is blue?", "square")
            says(session, IT, "yellow")
            says(fork, IT, "blue")
            for either in (session, fork):
                says(either, COUNT, "five")
            assert fork.rewind(3).turn == 3
            says(fork, IT, "blue")
        assert session.rewind(2).turn == 2
        says(session, COUNT, "three")
        with pytest.raises(TurnGap):
            session.rewind(4)
        with pytest.raises(SessionExists):
            session.fork(session_id=session.session_id)
        assert session.info().turns == 3


def test_a_fork_may_begin_at_any_turn(server: LocalServer) -> None:
    """Also where the client leaves the choice of the id to the server."""
    with connect(server.http_url) as connection, connection.open(images=[SCENE]) as session:
        says(session, "Which shape is yellow?", "triangle")
        says(session, "Which shape is blue?", "square")
        with session.fork(at_turn=1) as fork:
            says(fork, IT, "yellow")
        says(session, IT, "blue")


def test_plain_http_names_the_fork_in_header_and_body(speaker: Speaker) -> None:
    """The next request simply uses the new id; each of the two is closed by itself."""
    session = speaker.open()
    speaker.ask({"prompt": "Which shape is yellow?"}, session=session)
    forked = speaker.post({"type": "fork", "ttl_s": 600}, session=session)
    assert forked.status_code == 200, forked.text
    answer = forked.json()
    assert (answer["forked_from"], answer["turn"]) == (session, 1)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
    fork, _, expires = forked.headers[HEADER].partition("; ")
    assert (fork, expires) == (answer["session_id"], f"Expires={answer['expires_at']}")
    assert fork != session
    speaker.ask({"type": "close"}, session=session)
    assert speaker.ask({"prompt": IT}, session=fork)["text"] == "yellow"
    rewound = speaker.post({"type": "rewind", "to_turn": 0}, session=fork)
    assert rewound.json().items() >= {"session_id": fork, "turn": 0}.items()
    assert rewound.headers[HEADER] == fork
    assert speaker.ask({"prompt": COUNT}, session=fork)["text"] == "one"
    speaker.ask({"type": "close"}, session=fork)


def test_the_body_alone_may_name_the_source(speaker: Speaker) -> None:
    """In the sequence profile the fork then gets the id that TorchServe has made for the request."""
    session = speaker.open()
    speaker.ask({"prompt": "Which shape is blue?"}, session=session)
    answer = speaker.ask({"type": "fork", "session_id": session})
    assert answer["forked_from"] == session
    assert speaker.ask({"prompt": IT}, session=answer["session_id"])["text"] == "blue"
    for name in (session, answer["session_id"]):
        speaker.ask({"type": "close"}, session=name)


@pytest.mark.parametrize("profile", ["continuous", "async", "asgi"])
def test_a_session_is_forked_in_the_middle_of_a_turn(
    request: pytest.FixtureRequest, profile: str, speak: Callable[[LocalServer], Speaker]
) -> None:
    """The turn goes on; the session itself goes back once the turn is cancelled. (The sequence profile runs one request of
    a session at a time.)"""
    speaker = speak(request.getfixturevalue(f"{profile}_server"))
    session = speaker.open()
    speaker.ask({"prompt": "Which shape is yellow?"}, session=session)
    events = speaker.events({**ENDLESS, "stream": True}, session=session)
    next(events)
    fork = speaker.ask({"type": "fork"}, session=session)
    assert fork["turn"] == 1
    refused = speaker.post({"type": "rewind", "to_turn": 0}, session=session)
    assert error_of(refused.json()) == ("turn_gap", 409)
    assert speaker.ask({"prompt": IT}, session=fork["session_id"])["text"] == "yellow"
    next(events)
    assert speaker.ask({"type": "cancel"}, session=session)["cancelled"] is True
    assert list(events)[-1]["finish_reason"] == "cancelled"
    assert speaker.ask({"type": "rewind", "to_turn": 1}, session=session)["turn"] == 1
    assert speaker.ask({"prompt": IT}, session=session)["text"] == "yellow"
    for name in (session, fork["session_id"]):
        speaker.ask({"type": "close"}, session=name)
