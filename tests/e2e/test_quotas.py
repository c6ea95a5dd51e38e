"""Quotas on a real server: what one principal uses up, another still has, and idle sessions give way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.server import ENDLESS, profile_server
from tests.e2e.speak import SCENE, SCENE_BASE64, Speaker, error_of, eventually
from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from ts_stateful.client import connect
from ts_stateful.client.retry import RetryPolicy
from ts_stateful.protocol.errors import QuotaExceeded
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

Speak = Callable[[LocalServer], Speaker]
_PLACES = 4
_QUOTAS = {
    "openSessions": 2,
    "principals": {
        "alice": {"openSessions": _PLACES},
        "carol": {"tokensPerMinute": 1},
        "dave": {"turnsInFlight": 1},
        "erin": {"queuedBytes": 1000},
    },
}


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    """An issuer of tokens."""
    return Issuer()


@pytest.fixture(
    scope="module", params=[Profile.CONTINUOUS, Profile.ASGI], ids=lambda one: one.value
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, issuer: Issuer
) -> Iterator[LocalServer]:
    """A server with few places, for principals with quotas."""
    profile: Profile = request.param
    folder = tmp_path_factory.mktemp("quotas")
    (folder / "keys.json").write_bytes(issuer.key_set)
    auth = {"mode": "jwt", "issuer": ISSUER, "audience": AUDIENCE}
    handler = {"auth": {**auth, "jwks": str(folder / "keys.json")}, "quotas": _QUOTAS}
    with profile_server(
        profile,
        folder,
        name=f"quotas-{profile.value}",
        endless=True,
        handler=handler,
        maxNumSequence=_PLACES,
    ) as server:
        yield server


class Caller:
    """One principal's requests over plain HTTP and gRPC."""

    def __init__(self, speaker: Speaker, token: str) -> None:
        self.speaker = speaker
        self.token = f"Bearer {token}"

    def post(self, document: Any, session: str | None = None) -> Any:
        """Return the response to an HTTP request."""
        return self.speaker.post(document, session=session, headers={"Authorization": self.token})

    def call(self, document: Any, session: str) -> tuple[dict[str, Any], int]:
        """Return the document and the status of the answer to a gRPC message."""
        message = self.speaker.message(
            {**document, "session_id": session}, authorization=self.token.encode()
        )
        with self.speaker.stub() as stub:
            answer = stub.Predictions(message)
        found: dict[str, Any] = json.loads(answer.prediction)
        return found, found.get("error", {}).get("status", 200)

    def open(self) -> str:
        """Open a session on the demo scene."""
        response = self.post({"type": "open", "images": [{"base64": SCENE_BASE64}]})
        assert response.status_code == 200, response.text
        return str(response.json()["session_id"])


@pytest.fixture
def caller(server: LocalServer, speak: Speak, issuer: Issuer) -> Callable[[str], Caller]:
    """Return the requests of a principal."""
    return lambda name: Caller(speak(server), issuer.token(name))


def exceeded(found: dict[str, Any], quota: str) -> bool:
    """Return True if a document is the refusal of this quota, with a time to wait."""
    error = found["error"]
    named = (error["code"], error["status"], error["field"])
    assert error["retry_after_s"] > 0
    return named == ("quota_exceeded", 429, f"handler.quotas.{quota}")


def test_idle_sessions_keep_nobody_else_out(caller: Callable[[str], Caller]) -> None:
    """All places are taken: a chat completion of another principal is answered, and its owner's next session parks one."""
    alice, bob = caller("alice"), caller("bob")
    sessions = [alice.open() for _ in range(_PLACES)]
    for session in sessions:
        asked = alice.post({"prompt": "What color is the circle?"}, session)
        assert asked.json()["text"] == "red"
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SCENE_BASE64}"}},
        {"type": "text", "text": "What color is the circle?"},
    ]
    chat = {"model": "chat", "messages": [{"role": "user", "content": content}]}
    url = f"{bob.speaker.server.http_url}/predictions/chat/1.0/v1/chat/completions"
    answer = bob.speaker.http.post(url, json=chat, headers={"Authorization": bob.token})
    assert answer.json()["choices"][0]["message"]["content"] == "red"
    refused = bob.post({"type": "open"})
    assert error_of(refused.json()) == ("too_many_sessions", 429)
    assert int(refused.headers["Retry-After"]) > 0
    more = alice.open()
    for session in sessions:  # each parks the one that was used longest ago
        asked = alice.post({"prompt": "And the square?"}, session)
        assert (asked.json()["text"], asked.json()["turn"]) == ("blue", 2)
        assert asked.json()["timing"]["restored_from"] == "store"
    eventually(lambda: alice.speaker.figure("StatefulSessionsOpen") == _PLACES)
    for session in (*sessions, more):
        assert alice.post({"type": "close"}, session).status_code == 200


def test_used_up_tokens_are_refused_alike_over_http_and_grpc(
    caller: Callable[[str], Caller],
) -> None:
    """With the quota's name and the time until there are some again; others go on."""
    carol, bob = caller("carol"), caller("bob")
    prompt = {"prompt": "What color is the circle?"}
    session = carol.open()
    refused = carol.post(prompt, session)
    assert refused.status_code == 429
    assert exceeded(refused.json(), "tokensPerMinute")
    retry_after_s = refused.json()["error"]["retry_after_s"]
    assert 0 <= int(refused.headers["Retry-After"]) - retry_after_s < 1
    found, status = carol.call(prompt, session)
    assert (status, exceeded(found, "tokensPerMinute")) == (429, True)
    assert found["error"]["retry_after_s"] <= retry_after_s
    assert carol.post({"type": "close"}, session).status_code == 200
    own = bob.open()
    assert bob.post(prompt, own).json()["text"] == "red"
    assert bob.post({"type": "close"}, own).status_code == 200


def test_turns_in_flight_are_refused_alike_over_http_and_grpc(
    caller: Callable[[str], Caller], server: LocalServer, issuer: Issuer
) -> None:
    """While one runs; the client library raises the quota by its name."""
    dave = caller("dave")
    session, other = dave.open(), dave.open()
    headers = {"Authorization": dave.token, "ts_request_sequence_id": session}
    document = {**ENDLESS, "stream": True}
    with dave.speaker.http.stream(
        "POST", dave.speaker.url, json=document, headers=headers
    ) as stream:
        events = stream.iter_lines()  # whose end would close the connection
        next(events)
        refused = dave.post({"prompt": "x"}, other)
        assert exceeded(refused.json(), "turnsInFlight")
        assert refused.headers["Retry-After"] == "1"
        assert dave.call({"prompt": "x"}, other)[1] == 429
        policy = RetryPolicy(max_retries=0)
        with (
            connect(server.http_url, token=issuer.token("dave"), policy=policy) as connection,
            pytest.raises(QuotaExceeded) as caught,
        ):
            connection.open(images=[SCENE])
        assert caught.value.field == "handler.quotas.turnsInFlight"
        assert dave.post({"type": "cancel"}, session).json()["cancelled"] is True
    assert dave.post({"prompt": "What color is the circle?"}, other).json()["text"] == "red"
    for name in (session, other):
        assert dave.post({"type": "close"}, name).status_code == 200


def test_bytes_in_flight_are_refused_before_they_are_read(caller: Callable[[str], Caller]) -> None:
    """While a request of the same principal is in flight; the only one may be large."""
    erin = caller("erin")
    session = erin.open()
    headers = {"Authorization": erin.token, "ts_request_sequence_id": session}
    document = {**ENDLESS, "stream": True}
    with erin.speaker.http.stream(
        "POST", erin.speaker.url, json=document, headers=headers
    ) as stream:
        events = stream.iter_lines()  # whose end would close the connection
        next(events)
        refused = erin.post({"type": "info", "x": "y" * 1000}, session)
        assert exceeded(refused.json(), "queuedBytes")
        assert erin.post({"type": "info"}, session).status_code == 200
        assert erin.post({"type": "cancel"}, session).json()["cancelled"] is True
    assert erin.post({"type": "close"}, session).status_code == 200
