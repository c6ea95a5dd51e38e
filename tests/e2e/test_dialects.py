"""Clients that were written for other servers, as their documents have them, on a real TorchServe in every profile."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.speak import DEADLINE_S, HEADER, SCENE, Innocent, Speaker
from ts_stateful.serving.server import LocalServer

END_HEADER = "ts_request_sequence_end"
SCENE_URL = f"data:image/png;base64,{base64.b64encode(SCENE.read_bytes()).decode()}"
_STREAM = {"inputs": "Is there a circle?", "stream": True}


class Runtime:
    """What boto3's client of SageMaker's runtime is to its users; the endpoint is TorchServe's `/invocations`."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker

    def invoke_endpoint(
        self, *, Body: str, ContentType: str, SessionId: str | None = None
    ) -> dict[str, Any]:
        """Returns the body, and the headers under SageMaker's names."""
        headers = {"Content-Type": ContentType}
        if SessionId is not None:
            headers[HEADER] = SessionId
        response = self._speaker.http.post(
            f"{self._speaker.server.http_url}/invocations", content=Body, headers=headers
        )
        new, closed = response.headers.get(HEADER), response.headers.get(END_HEADER)
        return {
            "StatusCode": response.status_code,
            "ContentType": response.headers["content-type"],
            "NewSessionId": new,
            "ClosedSessionId": closed,
            "Body": response.content,
        }


@pytest.fixture(params=["continuous", "sequence", "async", "asgi"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """Every profile in turn."""
    server: LocalServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def runtime(server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Iterator[Runtime]:
    """A client of that server; somebody else's session goes on beside it."""
    speaker = speak(server)
    with Innocent(speaker) as innocent:
        yield Runtime(speaker)
        innocent.goes_on()


def test_a_client_of_djl_serving(runtime: Runtime) -> None:
    """Starts a session, asks in it, whole and in JSON lines, and closes it."""

    def invoke(payload: dict[str, Any], session: str | None) -> dict[str, Any]:
        return runtime.invoke_endpoint(
            Body=json.dumps(payload), ContentType="application/json", SessionId=session
        )

    created = invoke({"requestType": "NEW_SESSION"}, "NEW_SESSION")
    session_id, _, expires = created["NewSessionId"].partition("; ")
    assert expires.startswith("Expires=")
    assert json.loads(created["Body"]) == {"result": f"Session {session_id} created"}
    answer = invoke({"inputs": "What color is a banana?", "parameters": {}}, session_id)
    whole = json.loads(answer["Body"])["generated_text"]
    assert answer["StatusCode"] == 200
    streamed = invoke({"inputs": "What color is a banana?", "stream": True}, session_id)
    assert streamed["ContentType"] == "application/jsonlines"
    lines = [json.loads(line) for line in streamed["Body"].splitlines()]
    assert "".join(line["token"]["text"] for line in lines) == lines[-1]["generated_text"]
    alone = invoke({"inputs": "What color is a banana?"}, None)
    assert (json.loads(alone["Body"])["generated_text"], alone["NewSessionId"]) == (
        whole,
        None,
    )
    wrong = invoke({"inputs": "x", "parameters": {"max_new_tokens": 0}}, session_id)
    assert (wrong["StatusCode"], json.loads(wrong["Body"])["code"]) == (400, 400)
    closed = invoke({"requestType": "CLOSE"}, session_id)
    assert closed["ClosedSessionId"] == session_id
    again = invoke({"inputs": "x"}, session_id)
    assert (again["StatusCode"], json.loads(again["Body"])["code"]) == (410, 410)


class SglangClient:
    """The sample's own wrapper."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def start_session(self, session_id: str) -> dict[str, Any]:
        """Under an id of the client's."""
        payload = {"extSessionID": session_id, "requestType": "NEW_SESSION"}
        return self._invoke(payload, "NEW_SESSION")

    def end_session(self, session_id: str) -> dict[str, Any]:
        """Ends it."""
        payload = {"extSessionID": session_id, "requestType": "CLOSE_SESSION"}
        return self._invoke(payload, session_id)

    def invoke(self, text: str | None, session_id: str) -> dict[str, Any]:
        """Asks, with the sample's parameters but without chance."""
        payload = {
            "inputs": text,
            "sampling_params": {"temperature": 0.9, "max_new_token": 128, "do_sample": False},
            "extSessionID": session_id,
            "requestType": "SESSION",
        }
        return self._invoke(payload, session_id)

    def _invoke(self, payload: dict[str, Any], session: str) -> dict[str, Any]:
        return self._runtime.invoke_endpoint(
            Body=json.dumps(payload), ContentType="application/json", SessionId=session
        )


def test_a_client_of_the_sample_with_sglang(runtime: Runtime) -> None:
    """Its session has the id that it chose; turns follow each other in it."""
    client = SglangClient(runtime)
    session_id = f"conversation-{uuid.uuid4().hex[:8]}"
    started = client.start_session(session_id)
    assert started["NewSessionId"].startswith(f"{session_id}; Expires=")
    assert json.loads(started["Body"]) == {}
    cached = []
    for question in ("Is there a circle?", "And the square?"):
        generation = json.loads(client.invoke(question, session_id)["Body"])["generation"]
        assert generation["text"]
        cached.append(generation["meta_info"]["cached_tokens"])
    assert cached[1] > cached[0]
    missing = client.invoke(None, session_id)
    assert missing["StatusCode"] == 400
    assert json.loads(missing["Body"]) == {"error": "inputs is required"}
    ended = client.end_session(session_id)
    assert (ended["ClosedSessionId"], json.loads(ended["Body"])) == (session_id, {})
    assert client.end_session(session_id)["StatusCode"] == 410


def test_a_client_of_the_sample_with_llava(runtime: Runtime) -> None:
    """Sends its picture once, asks about it, and closes."""

    def send(request: dict[str, Any], session: str) -> Any:
        response = runtime.invoke_endpoint(
            Body=json.dumps(request), ContentType="application/json", SessionId=session
        )
        assert response["StatusCode"] == 200, response
        return json.loads(response["Body"].splitlines()[0])

    opened = send({"type": "start_session", "path": SCENE_URL}, "NEW_SESSION")
    session_id = opened["session_id"]
    assert session_id.startswith("ts-seq-")
    for question, answer in (("What color is the circle?", "red"), ("And the square?", "blue")):
        prompt = {"type": "send_text_prompt", "session_id": session_id, "prompt_text": question}
        assert send(prompt, session_id)["response_text"] == answer
    close = {"type": "close_session", "session_id": session_id}
    assert send(close, session_id) == {"success": True}


def test_over_grpc_a_stream_has_the_same_body(
    async_server: LocalServer, speak: Callable[[LocalServer], Speaker]
) -> None:
    """Where the profile pushes."""
    pushing = speak(async_server)
    with pushing.stub() as stub:
        message = pushing.message(_STREAM, rpc=b"StreamPredictions")
        pieces = [r.prediction for r in stub.StreamPredictions(message, timeout=DEADLINE_S)]
        assert json.loads(b"".join(pieces).splitlines()[-1])["generated_text"]


def test_over_grpc_the_stream_of_a_sequence_has_the_same_body(
    sequence_server: LocalServer, speak: Callable[[LocalServer], Speaker]
) -> None:
    """It takes the opening and the prompt."""
    over = threading.Event()
    sequence = speak(sequence_server)
    with sequence.stub() as stub:
        message = sequence.message(_STREAM, session=f"dialect-{uuid.uuid4().hex}")
        message.input["data"] = json.dumps({"requestType": "NEW_SESSION"}).encode()
        again = sequence.message(_STREAM, session=message.sequence_id)

        def requests() -> Iterator[Any]:
            yield message
            yield again
            over.wait(DEADLINE_S)

        body = b""
        for reply in stub.StreamPredictions2(requests(), timeout=DEADLINE_S):
            body += reply.prediction
            if b"generated_text" in body:
                over.set()
        assert json.loads(body.splitlines()[-1])["generated_text"]


def test_over_grpc_prompts_are_refused_where_replies_are_pulled(
    continuous_server: LocalServer, speak: Callable[[LocalServer], Speaker]
) -> None:
    """Sessions come and go."""
    pulling = speak(continuous_server)
    with pulling.stub() as stub:
        opened = stub.Predictions(
            pulling.message({"requestType": "NEW_SESSION"}), timeout=DEADLINE_S
        )
        assert "result" in json.loads(opened.prediction)
        refused = stub.Predictions(pulling.message(_STREAM), timeout=DEADLINE_S)
        assert json.loads(refused.prediction)["code"] == 400


def test_an_address_that_is_not_public_is_not_fetched_in_any_dialect(runtime: Runtime) -> None:
    """The rules for URLs are the same for all."""
    url = "https://127.0.0.1/a.png"
    image = {"type": "image_url", "image_url": {"url": url}}
    message = {"role": "user", "content": [image]}
    for document in (
        {"type": "start_session", "path": url},
        {"model": "chat", "messages": [message]},
    ):
        response = runtime.invoke_endpoint(
            Body=json.dumps(document), ContentType="application/json"
        )
        assert response["StatusCode"] == 403, response
        assert b"images[" not in response["Body"]
