"""A conversation about a real image, in every profile, over every transport."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.speak import DEADLINE_S, DIALOGUE, HEADER, SCENE, SCENE_BASE64, Speaker
from ts_stateful.client import connect
from ts_stateful.protocol.session_ids import new_session_id
from ts_stateful.serving.server import LocalServer


@pytest.fixture(params=["continuous", "sequence", "async", "asgi"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """Every profile in turn."""
    server: LocalServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def speaker(server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Speaker:
    """Plain HTTP and gRPC to that server."""
    return speak(server)


@pytest.mark.parametrize("transport", ["grpc", "http"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_client_holds_a_conversation(server: LocalServer, transport: str, stream: bool) -> None:
    """Question after question is answered rightly, and only what is new is computed."""
    url = server.grpc_url if transport == "grpc" else server.http_url
    with connect(url) as connection, connection.open(images=[SCENE]) as session:
        known = 0
        for question, answer in DIALOGUE:
            reply = session.prompt(question, stream=stream)
            assert "".join(reply) == answer == reply.text
            assert reply.finish_reason == "stop"
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details.cached_tokens >= known
            known = reply.usage.prompt_tokens


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_session_is_erased(server: LocalServer, transport: str) -> None:
    """While it is open, and once more after that; the server's own store has nothing of it."""
    url = server.grpc_url if transport == "grpc" else server.http_url
    environ = server.engines()[0].environ()
    [store] = Path(environ["TMPDIR"]).glob("ts-stateful-*/store")
    with connect(url) as connection:
        session = connection.open(images=[SCENE])
        assert session.ask("What color is the circle?") == "red"
        found = list((store / "sessions" / session.session_id).iterdir())
        assert [len(path.name) for path in found].count(len("@") + 64) == 1
        for _ in range(2):
            connection.erase(session.session_id)
            left = {path.parent.name for path in store.rglob(f"{session.session_id}*")}
            assert left == {"ended"}


def test_plain_http_streams_and_answers(speaker: Speaker) -> None:
    """Events carry the text in pieces; the header names the session; closing ends it."""
    opened = speaker.post({"type": "open", "images": [{"base64": SCENE_BASE64}]})
    session, _, expires = opened.headers[HEADER].partition("; ")
    assert opened.json()["session_id"] == session
    assert expires == f"Expires={opened.json()['expires_at']}"
    events = list(
        speaker.events({"prompt": "What color is the circle?", "stream": True}, session=session)
    )
    assert "".join(event["text"] for event in events) == "red"
    assert events[-1]["turn"] == 1
    assert events[-1]["usage"]["completion_tokens"] == 1
    answered = speaker.post({"prompt": "And the square?"}, session=session)
    assert answered.json()["text"] == "blue"
    assert answered.headers[HEADER] == session
    closed = speaker.post({"type": "close"}, session=session)
    assert closed.json() == {"session_id": session, "closed": True}
    assert closed.headers["ts_request_sequence_end"] == session
    assert speaker.post({"prompt": "Hello?"}, session=session).status_code == 410


def test_a_form_may_carry_the_image(speaker: Speaker) -> None:
    """The part `data` is the JSON, every other part an image."""
    opened = speaker.post(
        files={
            "data": (None, '{"type": "open"}', "application/json"),
            "image": ("scene.png", SCENE.read_bytes(), "image/png"),
        }
    )
    assert opened.status_code == 200, opened.text
    session = opened.json()["session_id"]
    answer = speaker.ask({"prompt": "Which shape is blue?"}, session=session)
    assert answer["text"] == "square"


def test_a_prompt_alone_opens_a_session(speaker: Speaker) -> None:
    """Its answer carries the new id and until when it lives."""
    document = {"prompt": "Is there a circle?", "images": [{"base64": SCENE_BASE64}]}
    answered = speaker.post(document)
    assert answered.json()["text"] == "yes"
    session = answered.json()["session_id"]
    assert answered.headers[HEADER].startswith(f"{session}; Expires=")
    assert speaker.ask({"prompt": "And a square?"}, session=session)["turn"] == 2


def test_the_body_alone_may_name_the_session(speaker: Speaker) -> None:
    """Where no header comes, `session_id` in the body says which one is meant."""
    name = new_session_id()
    speaker.open(session_id=name)
    answer = speaker.ask({"prompt": "How many shapes are there?", "session_id": name})
    assert (answer["text"], answer["session_id"]) == ("three", name)


def test_unary_grpc_is_pulled(
    continuous_server: LocalServer, speak: Callable[[LocalServer], Speaker]
) -> None:
    """In the continuous profile the first answer comes at once, the rest by `continue`."""
    speaker = speak(continuous_server)
    with speaker.stub() as stub:

        def call(document: dict[str, object]) -> dict[str, object]:
            message = speaker.message(document)
            reply = stub.Predictions(message, timeout=DEADLINE_S)
            answer: dict[str, object] = json.loads(reply.prediction)
            return answer

        opened = call({"type": "open", "images": [{"base64": SCENE_BASE64}]})
        session = opened["session_id"]
        first = call({"prompt": "What color is the square?", "session_id": session})
        assert first["more"] is True
        text, more = str(first["text"]), True
        while more:
            pulled = call(
                {"type": "continue", "session_id": session, "turn": 1, "after": len(text)}
            )
            text, more = text + str(pulled["text"]), bool(pulled["more"])
        assert text == "blue"
        assert pulled["finish_reason"] == "stop"
