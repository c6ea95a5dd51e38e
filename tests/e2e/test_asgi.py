"""The front without TorchServe, in what TorchServe cannot do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import psutil
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.e2e.server import ENDLESS, profile_server
from tests.e2e.speak import DEADLINE_S, DIALOGUE, SCENE, SCENE_BASE64, Speaker, eventually
from ts_stateful.client import RetryPolicy
from ts_stateful.client import connect as connect_client
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

_QUESTION = {"prompt": "What color is the circle?"}
_STREAM = {**ENDLESS, "stream": True}
Speak = Callable[[LocalServer], Speaker]


@pytest.fixture
def asgi(asgi_server: LocalServer, speak: Speak) -> Speaker:
    """A client of the shared server."""
    return speak(asgi_server)


def is_quiet(speaker: Speaker) -> bool:
    """Return True if no turn runs."""
    return speaker.figure("StatefulTurnsInProgress") == 0


def test_a_half_closed_call_gets_its_answers(asgi: Speaker) -> None:
    """Also several requests of one call, in their order."""
    session = asgi.open()
    questions = [asgi.message({"prompt": question}, session=session) for question, _ in DIALOGUE]
    with asgi.stub() as stub:
        replies = list(stub.StreamPredictions2(iter(questions), timeout=DEADLINE_S))
    texts = [json.loads(reply.prediction)["text"] for reply in replies]
    assert texts == [answer for _, answer in DIALOGUE]
    assert all(reply.sequence_id == session for reply in replies)
    asgi.ask({"type": "close"}, session=session)


def test_a_message_with_an_error_has_its_grpc_code(asgi: Speaker) -> None:
    """A call that reaches no model fails with it."""
    with asgi.stub() as stub:
        reply = stub.Predictions(asgi.message({"type": "info", "session_id": "nobody"}))
        assert json.loads(reply.prediction)["error"]["code"] == "session_not_found"
        assert reply.status.code == grpc.StatusCode.NOT_FOUND.value[0]
        message = asgi.message(_QUESTION)
        message.model_name = "none"
        with pytest.raises(grpc.RpcError) as failed:
            stub.Predictions(message)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


def test_grpc_has_health_of_its_own(asgi: Speaker) -> None:
    """As probes ask for it: of the server, of the service, and of a model by its name."""
    with grpc.insecure_channel(asgi.server.grpc_url.removeprefix("grpc://")) as channel:
        health = HealthStub(channel)
        for name in ("", "chat", "org.pytorch.serve.grpc.inference.InferenceAPIsService"):
            asked = HealthCheckRequest(service=name)
            assert health.Check(asked).status == HealthCheckResponse.SERVING
            assert next(health.Watch(asked)).status == HealthCheckResponse.SERVING
        missing = HealthCheckRequest(service="nothing")
        with pytest.raises(grpc.RpcError) as failed:
            health.Check(missing)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        assert "chat" in failed.value.details()
        assert next(health.Watch(missing)).status == HealthCheckResponse.SERVICE_UNKNOWN


def test_grpc_describes_its_service(asgi: Speaker) -> None:
    """A client without our files asks for them, as `grpcurl` does, and calls the service by what it gets."""
    with grpc.insecure_channel(asgi.server.grpc_url.removeprefix("grpc://")) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        (name,) = (one for one in database.get_services() if one.startswith("org.pytorch"))
        service = DescriptorPool(database).FindServiceByName(name)
        method = service.FindMethodByName("Predictions")
        assert method is not None
        request: Any = GetMessageClass(method.input_type)(model_name="chat")
        request.input["data"] = b'{"type": "hello"}'
        answer = channel.unary_unary(
            f"/{name}/Predictions",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )(request)
    assert json.loads(answer.prediction)["model"] == "chat"


def refusals(speaker: Speaker) -> dict[str, float]:
    """Errors by code and model, without those that never occurred."""
    errors = re.findall(
        r'ts_stateful_errors_total{code="(\w+)",model="(\w*)"} (\S+)', speaker.metrics()
    )
    return {
        f"{code} {model}".strip(): float(value) for code, model, value in errors if value != "0.0"
    }


def test_each_refusal_is_counted_once(asgi: Speaker) -> None:
    """Also one that reaches no engine or no model, on every transport. Models that are missing have no label of their own."""
    asgi.post(content=b"{")
    asgi.post({"prompt": "x", "unknown": 1})
    before = refusals(asgi)
    assert asgi.post(content=b"{").status_code == 400
    assert asgi.post({"prompt": "x", "unknown": 1}).status_code == 400
    assert asgi.post(content=b"x" * 29_000_000).status_code == 413
    for path in ("predictions/a", "predictions/b", "v2/models/c/infer"):
        assert asgi.http.post(f"{asgi.server.http_url}/{path}", json=_QUESTION).status_code == 404
    assert asgi.http.post(f"{asgi.url}/2.0", json=_QUESTION).status_code == 404
    message = asgi.message(_QUESTION)
    message.model_name = "d"
    with asgi.stub() as stub, pytest.raises(grpc.RpcError):
        stub.Predictions(message)
    with (
        connect(f"{asgi.server.http_url.replace('http', 'ws')}/v1/sessions/e") as ended,
        pytest.raises(ConnectionClosed),
    ):
        ended.recv(DEADLINE_S)
    after = refusals(asgi)
    counted = {name: after[name] - before.get(name, 0) for name in after}
    assert {name: number for name, number in counted.items() if number} == {
        "invalid_request chat": 2,
        "media_too_large chat": 1,
        "model_not_found": 5,
        "model_not_found chat": 1,
    }


@pytest.mark.parametrize("way", ["http", "grpc", "websocket", "unary"])
def test_a_client_that_disconnects_is_noticed(asgi: Speaker, way: str) -> None:
    """Its turn ends, whatever it was sent over; without a stream as well."""
    session = asgi.open()
    if way == "http":
        headers = {"ts_request_sequence_id": session}
        with asgi.http.stream("POST", asgi.url, json=_STREAM, headers=headers) as stream:
            next(stream.iter_lines())
    elif way == "grpc":
        with asgi.stub() as stub:
            next(stub.StreamPredictions(asgi.message({**_STREAM, "session_id": session})))
    elif way == "websocket":
        with sessions(asgi) as line:
            line.send(json.dumps({**_STREAM, "session_id": session}))
            line.recv()
    else:
        with contextlib.suppress(httpx.ReadTimeout):
            asgi.post(ENDLESS, session=session, timeout=0.3)
    eventually(lambda: is_quiet(asgi))
    asgi.ask({"type": "close"}, session=session)


def sessions(asgi: Speaker, path: str = "/v1/sessions") -> ClientConnection:
    """A WebSocket."""
    url = asgi.server.http_url.replace("http://", "ws://")
    return connect(f"{url}{path}", proxy=None)


def ask(line: ClientConnection, document: dict[str, Any]) -> dict[str, Any]:
    """Send a document, and return the next one."""
    line.send(json.dumps(document))
    answer: dict[str, Any] = json.loads(line.recv(timeout=DEADLINE_S))
    return answer


@pytest.mark.parametrize("path", ["/v1/sessions", "/invocations-bidirectional-stream"])
def test_a_conversation_over_websocket(asgi: Speaker, path: str) -> None:
    """Its documents are those of every other way, in both directions; pings are answered."""
    with sessions(asgi, path) as line:
        opened = ask(line, {"type": "open", "images": [{"base64": SCENE_BASE64}], "id": "o"})
        assert opened["id"] == "o"
        session = opened["session_id"]
        for question, answer in DIALOGUE:
            assert ask(line, {"prompt": question, "session_id": session})["text"] == answer
        assert line.ping().wait(DEADLINE_S)
        refused = ask(line, {"type": "dance", "id": 7})
        assert (refused["id"], refused["error"]["code"]) == (7, "invalid_request")
        assert ask(line, {"prompt": "x", "id": []})["error"]["field"] == "id"
        assert ask(line, {"type": "close", "session_id": session})["closed"] is True


def test_requests_of_one_websocket_run_side_by_side(asgi: Speaker) -> None:
    """A turn is cancelled on the connection that streams it; answers are told apart by their ids."""
    with sessions(asgi) as line:
        session = ask(line, {"type": "open"})["session_id"]
        line.send(json.dumps({**_STREAM, "session_id": session, "id": "turn"}))
        assert json.loads(line.recv())["id"] == "turn"
        line.send(json.dumps({"type": "cancel", "session_id": session, "id": "end"}))
        answers: list[dict[str, Any]] = []
        while len([one for one in answers if one["id"] == "end" or "turn" in one]) < 2:
            answers.append(json.loads(line.recv(timeout=DEADLINE_S)))
        (cancelled,) = [one for one in answers if one["id"] == "end"]
        assert cancelled["cancelled"] is True
        last = [one for one in answers if one["id"] == "turn"][-1]
        assert last["finish_reason"] == "cancelled"
        ask(line, {"type": "close", "session_id": session})


def test_the_session_header_has_any_case_and_spelling(asgi: Speaker) -> None:
    """What an answer has after the id may come back."""
    opened = asgi.post({"type": "open", "images": [{"base64": SCENE_BASE64}]})
    shown = opened.headers["ts_request_sequence_id"]
    assert "; Expires=" in shown
    for name in ("TS-Request-Sequence-Id", "ts_request_sequence_id", "Ts_Request-Sequence_ID"):
        answer = asgi.post({"type": "info"}, headers={name: shown})
        assert answer.json()["session_id"] == opened.json()["session_id"]
    asgi.ask({"type": "close"}, session=opened.json()["session_id"])


@pytest.mark.parametrize("path", ["/invocations", "/predictions/chat", "/predictions/chat/1.0"])
def test_every_path_reaches_the_model(asgi: Speaker, path: str) -> None:
    """Also those of OpenAI's clients, at the root and after the model's own."""
    base = asgi.server.http_url
    hello = asgi.http.post(base + path, json={"type": "hello"}).json()
    assert (hello["profile"], hello["model"]) == ("asgi", "chat")
    api = "" if path == "/invocations" else path
    assert asgi.http.get(f"{base}{api}/v1/models").json()["data"][0]["id"] == "chat"
    deleted = asgi.http.delete(f"{base}{api}/v1/models/chat")
    assert (deleted.status_code, deleted.headers["allow"]) == (405, "GET, HEAD")
    refused = asgi.http.post(f"{base}/predictions/chat/2.0", json={"type": "hello"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (404, "version")


def test_a_request_keeps_its_names(asgi: Speaker) -> None:
    """The client's `x-request-id` and `traceparent` are returned, or a new id."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = asgi.post({"type": "hello"}, headers={"x-request-id": "mine", "traceparent": trace})
    assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("mine", trace)
    other = asgi.post({"type": "hello"}, headers={"x-request-id": "no\tid", "traceparent": "00-0"})
    assert len(other.headers["x-request-id"]) == 32
    assert "traceparent" not in other.headers


def test_health_is_told_by_the_engine(asgi: Speaker) -> None:
    """By every probe; of one model as well."""
    for path in ("/livez", "/readyz", "/readyz/chat", "/ping", "/models", "/models/chat"):
        assert asgi.http.get(asgi.server.http_url + path).status_code == 200
    assert asgi.http.get(f"{asgi.server.http_url}/readyz/none").status_code == 404
    engine = asgi.server.engines()[0]
    engine.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: asgi.http.get(f"{asgi.server.http_url}/livez").status_code == 200)
    finally:
        engine.send_signal(signal.SIGCONT)


def test_a_killed_front_comes_back(asgi: Speaker) -> None:
    """Engines and sessions stay; the client library resumes its stream where it was."""
    server = asgi.server
    engines = [engine.pid for engine in server.engines()]
    policy = RetryPolicy(max_retries=100, max_delay_s=0.5)  # on a busy machine
    with (
        connect_client(server.grpc_url, policy=policy) as connection,
        connection.open(images=[SCENE]) as session,
    ):
        for _ in range(3):
            reply = session.prompt("What color is the circle?", max_new_tokens=300, ignore_eos=True)
            pieces = iter(reply)
            text = next(pieces)
            os.kill(asgi.worker_pid(), signal.SIGKILL)
            text += "".join(pieces)
            assert text == reply.text
            assert reply.usage is not None
            assert reply.usage.completion_tokens == 300
            session.rewind(0)
            eventually(server.is_ready)
    assert [engine.pid for engine in server.engines()] == engines


def test_a_stop_lets_turns_end(tmp_path: Any, speak: Speak) -> None:
    """The server takes no session meanwhile, and says so."""
    server = profile_server(Profile.ASGI, tmp_path, name="asgi-stop", endless=True)
    with server:
        speaker = speak(server)
        session = speaker.open()
        long = {**_STREAM, "max_new_tokens": 3000}
        events = speaker.events(long, session=session)
        next(events)
        psutil.Process(speaker.worker_pid()).send_signal(signal.SIGTERM)
        eventually(lambda: speaker.http.get(f"{server.http_url}/readyz").status_code == 503)
        refused = speaker.post({"type": "open"})
        assert (refused.status_code, refused.json()["error"]["retryable"]) == (503, True)
        assert list(events)[-1]["finish_reason"] == "length"


def test_a_turn_that_outlasts_the_drain_is_refused(tmp_path: Any, speak: Speak) -> None:
    """It can be sent again, to another server; its stream ends with that error."""
    with profile_server(
        Profile.ASGI, tmp_path, name="asgi-no-drain", endless=True, handler={"drainSec": 0}
    ) as server:
        speaker = speak(server)
        events = speaker.events({**_STREAM, "max_new_tokens": 3000}, session=speaker.open())
        next(events)
        psutil.Process(speaker.worker_pid()).send_signal(signal.SIGTERM)
        assert list(events)[-1]["error"]["code"] == "engine_unavailable"


def test_headers_that_never_end_are_cut_off(asgi: Speaker) -> None:
    """By their length."""
    with socket.create_connection(("127.0.0.1", asgi.server.ports.http)) as line:
        line.settimeout(DEADLINE_S)
        line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(OSError):
            for _ in range(100):
                line.sendall(b"x-filler: " + b"y" * 1000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(1000) == b""
    assert asgi.ask({"type": "hello"})["profile"] == "asgi"
