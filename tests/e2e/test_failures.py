"""What dies, hangs or goes away, and what is left of it: nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import grpc
import psutil
import pytest

from tests.e2e.server import ENDLESS, profile_server
from tests.e2e.speak import DEADLINE_S, SCENE, SCENE_BASE64, Speaker, error_of, eventually
from ts_stateful.client import RetryPolicy, connect
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.protocol.errors import TooManySessions
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

Speak = Callable[[LocalServer], Speaker]


def holds_nothing(speaker: Speaker) -> bool:
    """Whether the device has nothing but what is kept for the next session."""
    return speaker.figure("StatefulDeviceBytes") == speaker.figure("StatefulSharedBytes")


@pytest.fixture(
    scope="module", params=[Profile.CONTINUOUS, Profile.ASGI], ids=lambda one: one.value
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server of its own, since its processes are killed here: 16 sessions, three seconds to come back."""
    profile: Profile = request.param
    with profile_server(
        profile,
        tmp_path_factory.mktemp("failures"),
        name=f"failures-{profile.value}",
        endless=True,
        handler={"reattachSec": 3, "onFull": "refuse", "heartbeatSec": 15},
        maxNumSequence=16,
    ) as server:
        yield server


@pytest.fixture
def speaker(server: LocalServer, speak: Speak) -> Speaker:
    """Plain HTTP to that server."""
    return speak(server)


def test_a_thousand_opens_on_a_server_for_sixteen(speaker: Speaker) -> None:
    """Sixteen are served; the others get 429 and when to come back; nobody's session suffers."""
    innocent = speaker.open()
    document = {"type": "open"}
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda _: speaker.post(document), range(1000)))
    opened = [r.json()["session_id"] for r in responses if r.status_code == 200]
    refused = [r for r in responses if r.status_code != 200]
    assert len(opened) == 15
    assert {error_of(r.json()) for r in refused} == {("too_many_sessions", 429)}
    assert all(r.json()["error"]["retry_after_s"] > 0 for r in refused)
    assert all(int(r.headers["Retry-After"]) > 0 for r in refused)
    answer = speaker.ask({"prompt": "What color is the circle?"}, session=innocent)
    assert answer["text"] == "red"
    for session in (innocent, *opened):
        speaker.ask({"type": "close"}, session=session)
    eventually(lambda: speaker.figure("StatefulSessionsOpen") == 0)
    eventually(lambda: holds_nothing(speaker))


def test_a_client_that_disconnects_frees_its_turn(speaker: Speaker) -> None:
    """The turn stops, its KV states go, and the session can be used at once."""
    session = speaker.open()
    before = speaker.ask({"type": "info"}, session=session)
    events = speaker.events({**ENDLESS, "stream": True}, session=session)
    next(events)
    assert speaker.ask({"type": "info"}, session=session)["running"] is True
    events.close()  # type: ignore[attr-defined]
    eventually(lambda: not speaker.ask({"type": "info"}, session=session)["running"])
    after = speaker.ask({"type": "info"}, session=session)
    assert (after["tokens"], after["turns"]) == (before["tokens"], 0)
    assert after["cached_tokens"] <= before["cached_tokens"]
    answer = speaker.ask({"prompt": "What color is the circle?"}, session=session)
    assert (answer["text"], answer["turn"]) == ("red", 1)
    speaker.ask({"type": "close"}, session=session)


def test_a_disconnected_client_may_come_back(speaker: Speaker) -> None:
    """A retry with the same `turn` attaches to the turn in progress, or is answered from its record."""
    session = speaker.open()
    document = {**ENDLESS, "stream": True, "turn": 1, "max_new_tokens": 300}
    events = speaker.events(document, session=session)
    next(events)
    events.close()  # type: ignore[attr-defined]
    text = "".join(event["text"] for event in speaker.events(document, session=session))
    again = speaker.ask({**document, "stream": False}, session=session)
    assert (again["text"], again["replayed"]) == (text, True)
    speaker.ask({"type": "close"}, session=session)


def test_cancel_reaches_a_stream(speaker: Speaker) -> None:
    """The stream ends with what was generated, and the next turn builds on it."""
    session = speaker.open()
    events = speaker.events({**ENDLESS, "stream": True}, session=session)
    text = next(events)["text"]
    assert speaker.ask({"type": "cancel"}, session=session)["cancelled"] is True
    rest = list(events)
    assert rest[-1]["finish_reason"] == "cancelled"
    text += "".join(event["text"] for event in rest)
    record = speaker.ask({**ENDLESS, "turn": 1}, session=session)
    assert record["text"] == text
    assert speaker.ask({"prompt": "And the square?"}, session=session)["turn"] == 2
    speaker.ask({"type": "close"}, session=session)


def test_a_killed_engine_is_replaced_within_seconds(speaker: Speaker) -> None:
    """The next open works, sessions go on, and the worker has not noticed."""
    before = speaker.open()
    worker, engine = speaker.worker_pid(), speaker.engine_pid()
    os.kill(engine, signal.SIGKILL)
    session = speaker.open()
    answer = speaker.ask({"prompt": "What color is the circle?"}, session=session)
    assert answer["text"] == "red"
    assert speaker.worker_pid() == worker
    assert speaker.engine_pid() != engine
    answer = speaker.ask({"prompt": "What color is the square?"}, session=before)
    assert answer["text"] == "blue"
    assert answer["timing"]["restored_from"] == "store"
    for name in (session, before):
        speaker.ask({"type": "close"}, session=name)


def test_a_hung_engine_is_replaced(speaker: Speaker) -> None:
    """Whoever asks meanwhile gets an answer, and sessions go on."""
    session, engine = speaker.open(), speaker.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    answer = speaker.ask({"prompt": "What color is the circle?"}, session=session)
    assert answer["text"] == "red"
    assert answer["timing"]["restored_from"] == "store"
    assert speaker.engine_pid() != engine
    speaker.ask({"type": "close"}, session=session)


def test_a_killed_worker_is_back_with_its_sessions(server: LocalServer, speaker: Speaker) -> None:
    """The engine outlives it: sessions and the turn in progress go on; clients resume by themselves."""
    engine, worker = speaker.engine_pid(), speaker.worker_pid()
    for url in (server.grpc_url, server.http_url):
        with connect(url) as connection, connection.open(images=[SCENE]) as session:
            assert session.ask("What color is the circle?") == "red"
            reply = session.prompt("And the square?", max_new_tokens=600, ignore_eos=True)
            pieces = iter(reply)
            text = next(pieces)
            os.kill(speaker.worker_pid(), signal.SIGKILL)
            text += "".join(pieces)
            assert reply.usage is not None
            assert reply.usage.completion_tokens == 600
            assert session.continue_(2).text == text
            assert session.prompt("Which shape is yellow?").result()
            assert session.info().turns == 3
    assert speaker.engine_pid() == engine
    assert speaker.worker_pid() != worker


def test_too_many_sessions_is_a_typed_exception(server: LocalServer) -> None:
    """The client raises it once its own retries are over."""
    with connect(server.http_url, policy=RetryPolicy(max_retries=1)) as connection:
        sessions = [connection.open() for _ in range(16)]
        with pytest.raises(TooManySessions) as caught:
            connection.open()
        assert caught.value.retry_after_s
        for session in sessions:
            session.close()


def test_forks_count_as_sessions(speaker: Speaker) -> None:
    """The seventeenth is refused; the sixteen go on."""
    sessions = [speaker.open()]
    speaker.ask({"prompt": "Which shape is yellow?"}, session=sessions[0])
    for _ in range(15):
        sessions.append(speaker.ask({"type": "fork"}, session=sessions[-1])["session_id"])
    refused = speaker.post({"type": "fork"}, session=sessions[0])
    assert error_of(refused.json()) == ("too_many_sessions", 429)
    assert int(refused.headers["Retry-After"]) > 0
    for session in sessions:
        answer = speaker.ask({"prompt": "What color is it?"}, session=session)
        assert (answer["text"], answer["turn"]) == ("yellow", 2)
        speaker.ask({"type": "close"}, session=session)


def test_expired_sessions_give_their_memory_back(speaker: Speaker) -> None:
    """Expiry needs no request."""
    eventually(lambda: speaker.figure("StatefulSessionsOpen") == 0)
    other = speaker.open()
    eventually(lambda: speaker.figure("StatefulSessionsOpen") == 1)
    speaker.open(ttl_s=3)
    speaker.ask(
        {"type": "close"}, session=other
    )  # so that nobody has to catch the figure while both are open
    eventually(lambda: speaker.figure("StatefulSessionsOpen") == 0)
    eventually(lambda: holds_nothing(speaker))


def test_the_worker_stays_thin(speaker: Speaker) -> None:
    """It holds no model: less than 400 MB, beside the pages of torch's libraries that it shares with the engines."""
    assert psutil.Process(speaker.worker_pid()).memory_full_info().uss < 400e6


@pytest.mark.parametrize("profile", ["continuous", "sequence", "async", "asgi"])
def test_a_unary_call_gets_one_message(
    request: pytest.FixtureRequest, profile: str, speak: Speak
) -> None:
    """Also one that asks for a stream: in the async profile a second message would take the worker down."""
    server: LocalServer = request.getfixturevalue(f"{profile}_server")
    if profile == "sequence":
        pytest.skip("unary calls hang there, by the frontend: the client never makes one")
    speaker = speak(server)
    worker = speaker.worker_pid()
    document = {
        "prompt": "What color is the circle?",
        "stream": True,
        "images": [{"base64": SCENE_BASE64}],
    }
    with speaker.stub() as stub:
        reply = stub.Predictions(speaker.message(document), timeout=DEADLINE_S)
        answer = json.loads(reply.prediction)
        assert answer["more"] is True if profile == "continuous" else answer["text"] == "red"
        replies = list(stub.StreamPredictions(speaker.message(document), timeout=DEADLINE_S))
        assert len(replies) == (2 if profile == "asgi" else 1)
    assert speaker.ask({"type": "hello"})["profile"] == profile
    assert speaker.worker_pid() == worker


def test_stream_predictions_pushes_in_the_async_profile(
    async_server: LocalServer, speak: Speak
) -> None:
    """With the marker that says which call it is."""
    speaker = speak(async_server)
    document = {
        "prompt": "What color is the circle?",
        "stream": True,
        "images": [{"base64": SCENE_BASE64}],
        "max_new_tokens": 1000,  # many times what is generated between two pieces, on any machine
        "ignore_eos": True,
    }
    message = speaker.message(document, rpc=b"StreamPredictions")
    with speaker.stub() as stub:
        replies = list(stub.StreamPredictions(message, timeout=DEADLINE_S))
    events = [json.loads(reply.prediction) for reply in replies]
    assert len(events) > 2
    assert "".join(event["text"] for event in events).startswith("red")
    assert events[-1]["finish_reason"] == "length"


def test_wrong_calls_in_the_sequence_profile_end_by_their_deadline(
    sequence_server: LocalServer, speak: Speak
) -> None:
    """The frontend lets unary calls hang there; the deadline ends them, and others are served."""
    speaker = speak(sequence_server)
    with speaker.stub() as stub:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predictions(speaker.message({"type": "hello"}), timeout=1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with (
        connect(sequence_server.grpc_url) as connection,
        connection.open(images=[SCENE]) as session,
    ):
        assert session.ask("What color is the circle?") == "red"


def test_a_cancelled_stream_leaves_no_id_in_the_log(
    sequence_server: LocalServer, speak: Speak
) -> None:
    """Who knows a session's id has the session."""
    speaker, session = speak(sequence_server), "cancelled-by-its-client"
    message = Speaker.message({"prompt": "And now?", "stream": True}, session=session)
    speaker.ask({"type": "open"}, session=session)
    gone = Event()

    def requests() -> Iterator[PredictionsRequest]:
        yield message
        gone.wait(DEADLINE_S)  # half-closing early would take the model down

    with speaker.stub() as stub:
        call = stub.StreamPredictions2(requests(), timeout=DEADLINE_S)
        next(call)
        call.cancel()
    gone.set()
    speaker.ask({"type": "close"}, session=session)
    assert session not in speaker.server.log_tail()
