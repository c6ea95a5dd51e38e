"""The local SageMaker endpoint with two servers, used by an unchanged boto3 and by this package's client."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import PIL.Image
import PIL.PngImagePlugin
import psutil
import pytest
import websockets.sync.client
import yaml
from botocore.exceptions import ClientError
from websockets.exceptions import InvalidStatus

from deploy.sagemaker.local.endpoint import FRONTS
from tests.e2e.server import ROOT, START_TIMEOUT_S, log_path, pack
from tests.e2e.speak import eventually
from tests.support.sagemaker import boto_client, parts_of
from ts_stateful.client import Server, connect
from ts_stateful.client.session import PromptOptions
from ts_stateful.process.drain import is_alive, is_engine, wait_ended
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.session_ids import new_session_id

SCENE = ROOT / "examples" / "shapes" / "scene.png"
QUESTION = "What color is the circle?"
LONG: PromptOptions = {"max_new_tokens": 300, "ignore_eos": True}
_GONE_S = 60.0


class Endpoint:
    """The running command, as a context manager that ends it."""

    def __init__(self, archive: Path, front: str, logs: Path) -> None:
        self.front = front
        command = [sys.executable, "-m", "deploy.sagemaker.local"]
        command += ["--mar", str(archive), "--front", front, "--port", "0", "--endpoint", "demo"]
        command += ["--log-folder", str(logs), "--start-timeout", str(START_TIMEOUT_S)]
        self.url = ""
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def wait_ready(self) -> None:
        """Wait for the line `ready`."""
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            if line == "ready\n":
                self.url = lines[-1].split()[-1].partition("/endpoints/")[0]
                return
            lines.append(line)
        raise AssertionError(f"the command ended after {lines}")

    def ping(self) -> dict[str, Any]:
        """Return the endpoint's answer to `/ping`."""
        answer: dict[str, Any] = httpx.get(f"{self.url}/ping", timeout=_GONE_S).json()
        return answer

    def sessions(self) -> list[int]:
        """Count the sessions of each instance."""
        return [instance["sessions"] for instance in self.ping()["instances"]]

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=2 * _GONE_S)


@pytest.fixture(scope="module", params=FRONTS)
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    """Start two instances of the shapes model, with one store and each front."""
    folder = tmp_path_factory.mktemp("sagemaker")
    config = yaml.safe_load((ROOT / "model-config.yaml").read_text())
    config["handler"]["store"] = {"url": (folder / "store").as_uri(), "timeoutSec": 60}
    (folder / "model-config.yaml").write_text(yaml.safe_dump(config))
    archive = pack(folder / "archive", "--config", str(folder / "model-config.yaml"))
    logs = log_path(f"sagemaker_{request.param}").with_suffix("")
    with Endpoint(archive, request.param, logs) as endpoint:
        endpoint.wait_ready()
        yield endpoint


@pytest.fixture
def invoke(endpoint: Endpoint) -> Iterator[Callable[..., Any]]:
    """Return a function that calls InvokeEndpoint with a document and a session."""
    boto = boto_client(endpoint.url)

    def invoke(document: dict[str, Any], session_id: str, *, stream: bool = False) -> Any:
        call = boto.invoke_endpoint_with_response_stream if stream else boto.invoke_endpoint
        return call(
            EndpointName="demo",
            Body=json.dumps(document),
            ContentType="application/json",
            SessionId=session_id,
        )

    yield invoke
    boto.close()


@pytest.fixture
def server(endpoint: Endpoint) -> Iterator[Server]:
    """Connect this package's client."""
    with connect(f"sagemaker://demo?endpoint_url={endpoint.url}") as server:
        yield server


def test_clients_of_other_servers_work_unchanged(invoke: Callable[..., Any]) -> None:
    """The requests come from the documents of DJL Serving and of the samples with SGLang and LLaVA."""
    opened = invoke({"requestType": "NEW_SESSION"}, "NEW_SESSION")
    session_id = opened["NewSessionId"].split(";")[0]
    assert json.loads(opened["Body"].read())["result"] == f"Session {session_id} created"
    answer = invoke({"inputs": "Is there a circle?"}, session_id)
    assert json.loads(answer["Body"].read())["generated_text"]
    assert invoke({"requestType": "CLOSE"}, session_id)["ClosedSessionId"] == session_id

    name = f"conversation-{new_session_id()[:8]}"
    sessions = {"extSessionID": name, "requestType": "NEW_SESSION"}
    assert invoke(sessions, "NEW_SESSION")["NewSessionId"].startswith(f"{name}; Expires=")
    sampling = {"temperature": 0.9, "max_new_token": 128, "do_sample": True}
    prompt = {**sessions, "requestType": "SESSION", "inputs": "Hello", "sampling_params": sampling}
    assert "text" in json.loads(invoke(prompt, name)["Body"].read())["generation"]
    ended = invoke({**sessions, "requestType": "CLOSE_SESSION"}, name)
    assert ended["ClosedSessionId"] == name

    path = f"data:image/png;base64,{base64.b64encode(SCENE.read_bytes()).decode()}"
    body = invoke({"type": "start_session", "path": path}, "NEW_SESSION")["Body"]
    session_id = json.loads(body.readlines()[0])["session_id"]
    request = {"type": "send_text_prompt", "session_id": session_id, "prompt_text": QUESTION}
    body = invoke(request, session_id)["Body"]
    assert json.loads(body.readlines()[0]) == {"response_text": "red"}
    body = invoke({"type": "close_session", "session_id": session_id}, session_id)["Body"]
    assert json.loads(body.readlines()[0]) == {"success": True}


def test_boto3_holds_a_conversation_on_each_instance(
    endpoint: Endpoint, invoke: Callable[..., Any]
) -> None:
    """NEW_SESSION opens sessions on the instance with fewer of them, and prompts find them there."""
    names = []
    for _ in range(2):
        opened = invoke({"type": "open", "system": "Be brief."}, "NEW_SESSION")
        name, _, expires = opened["NewSessionId"].partition("; Expires=")
        document = json.loads(opened["Body"].read())
        assert (document["session_id"], document["expires_at"]) == (name, expires)
        names.append(name)
    assert endpoint.sessions() == [1, 1]
    for name in names:
        answer = invoke({"prompt": QUESTION, "max_new_tokens": 8}, name)
        whole = json.loads(answer["Body"].read())
        assert (whole["session_id"], whole["turn"]) == (name, 1)
        prompt = {"prompt": QUESTION, "max_new_tokens": 8, "stream": True}
        answer = invoke(prompt, name, stream=True)
        assert answer["ContentType"].startswith("text/event-stream")
        events = parts_of(list(answer["Body"])).decode().split("\n\n")
        last = json.loads(events[-2].removeprefix("data: "))
        assert (last["session_id"], last["turn"]) == (name, 2)
        closed = invoke({"type": "close"}, name)
        assert (closed["ClosedSessionId"], json.loads(closed["Body"].read())["closed"]) == (
            name,
            True,
        )
    assert endpoint.sessions() == [0, 0]


def test_a_conversation_in_both_directions(endpoint: Endpoint) -> None:
    """By WebSocket, with the documents of the protocol; only the front without TorchServe has it."""
    path = "/endpoints/demo/invocations-bidirectional-stream"
    url = endpoint.url.replace("http://", "ws://") + path
    if endpoint.front == "torchserve":
        with pytest.raises(InvalidStatus) as refused:
            websockets.sync.client.connect(url, proxy=None)
        assert refused.value.response.status_code == 424
        return
    image = {"base64": base64.b64encode(SCENE.read_bytes()).decode()}
    with websockets.sync.client.connect(url, proxy=None) as line:

        def ask(document: dict[str, Any]) -> dict[str, Any]:
            line.send(json.dumps(document))
            answer: dict[str, Any] = json.loads(line.recv(timeout=_GONE_S))
            return answer

        name = ask({"type": "open", "images": [image]})["session_id"]
        assert ask({"prompt": QUESTION, "session_id": name})["text"] == "red"
        assert ask({"type": "close", "session_id": name})["closed"] is True


def test_boto3_sees_the_errors_of_service_and_container(invoke: Callable[..., Any]) -> None:
    """The service refuses an unknown session, the container a wrong field."""
    with pytest.raises(ClientError) as caught:
        invoke({"prompt": "Hi"}, new_session_id())
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    opened = invoke({"type": "open"}, "NEW_SESSION")
    opened["Body"].read()
    name = opened["NewSessionId"].partition(";")[0]
    for stream in (False, True):
        with pytest.raises(ClientError) as caught:
            invoke({"prompt": "Hi", "stream": stream, "wrong": 1}, name, stream=stream)
        response = caught.value.response
        assert (response["Error"]["Code"], response["OriginalStatusCode"]) == ("ModelError", 400)
        assert json.loads(response["OriginalMessage"])["error"]["code"] == "invalid_request"
    invoke({"type": "close"}, name)["Body"].read()


def test_an_image_beyond_the_limit_of_the_service_is_seen(server: Server) -> None:
    """It is uploaded in parts: with `open`, where the first prompt carries it, and with a later prompt."""
    chunks = PIL.PngImagePlugin.PngInfo()
    chunks.add(b"nsYn", os.urandom(9_000_000))
    file = io.BytesIO()
    PIL.Image.open(SCENE).save(file, "PNG", pnginfo=chunks)
    image = file.getvalue()
    with server.open(images=[image]) as session:
        assert session.ask(QUESTION) == "red"
        assert session.info().images == 1
        session.rewind(0)
        assert "".join(session.prompt(QUESTION)) == "red"
    with server.open() as session:
        session.ask("Hello")
        assert session.prompt(QUESTION, images=[image, SCENE]).result()
        assert session.info().images == 2


def test_the_client_talks_about_a_picture(endpoint: Endpoint, server: Server) -> None:
    """It talks in pieces, whole and in a fork, gets typed errors, and closes its sessions."""
    assert server.hello().profile == ("asgi" if endpoint.front == "asgi" else "continuous")
    with server.open(images=[SCENE]) as session:
        reply = session.prompt(QUESTION)
        assert "".join(reply) == reply.text == "red"
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details.cached_tokens > 0
        with session.fork() as fork:
            assert fork.ask(QUESTION) == "red"
            assert sum(endpoint.sessions()) == 2
        assert session.info().turns == 1
        with pytest.raises(InvalidRequest):
            session.ask("Hi", max_new_tokens=-1)
        assert session.ask(QUESTION) == "red"
    assert sum(endpoint.sessions()) == 0


def test_the_notebook_runs_from_top_to_bottom(endpoint: Endpoint) -> None:
    """The notebook in deploy/sagemaker opens a session on the demo scene, asks, streams and closes."""
    folder = ROOT / "deploy" / "sagemaker"
    cells = json.loads((folder / "sessions.ipynb").read_text())["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": endpoint.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    opened, shapes, circle, square, closed, refused = done.stdout.splitlines()
    name = opened.partition(";")[0]
    assert [line.split("?  ")[1].split()[0] for line in (shapes, circle)] == ["three", "red"]
    assert (square, closed) == ("blue  [stop]", f"{name} True")
    assert refused == "ValidationError"
    assert sum(endpoint.sessions()) == 0


def test_the_sessions_of_a_killed_server_continue(endpoint: Endpoint, server: Server) -> None:
    """This holds in the middle of a stream, which sends the same text: the other instance reads the session from the store.

    The front without TorchServe starts again instead, and its engines still have the session.
    """
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(server.open(images=[SCENE])) for _ in range(4)]
        replies = [session.prompt(QUESTION, **LONG) for session in sessions]
        calm = {"".join(reply) for reply in replies}
        assert len(calm) == 1
        next_calm = "".join(sessions[0].prompt("And the square?", **LONG))
        for session in sessions:
            session.rewind(0)
        replies = [session.prompt(QUESTION, **LONG) for session in sessions]
        streams = [iter(reply) for reply in replies]
        begun = [next(stream) for stream in streams]
        stopped, other = endpoint.ping()["instances"]
        assert stopped["sessions"] == other["sessions"] == 2
        killed = _server_at(endpoint.process.pid, int(stopped["url"].rpartition(":")[2]))
        killed.kill()
        killed.wait(_GONE_S)
        with ThreadPoolExecutor() as pool:
            ended = pool.map("".join, streams)
        assert {first + rest for first, rest in zip(begun, ended, strict=True)} == calm
        for session in sessions:
            assert "".join(session.prompt("And the square?", **LONG)) == next_calm
            assert session.info().turns == 2
        assert sum(endpoint.sessions()) == 4
        if endpoint.front == "asgi":
            eventually(lambda: all(one["in_service"] for one in endpoint.ping()["instances"]))
        else:
            left, other = endpoint.ping()["instances"]
            assert (left["in_service"], left["sessions"]) == (False, 0)
            assert (other["in_service"], other["sessions"]) == (True, 4)


def test_sigterm_stops_everything(endpoint: Endpoint) -> None:
    """The command ends with status 0, and no server, worker or engine is left."""
    processes = psutil.Process(endpoint.process.pid).children(recursive=True)
    assert any(is_engine(one) for one in processes)
    endpoint.process.terminate()
    assert endpoint.process.wait(2 * _GONE_S) == 0
    wait_ended(processes, _GONE_S)
    assert not any(map(is_alive, processes))


def _server_at(pid: int, port: int) -> psutil.Process:
    for process in psutil.Process(pid).children(recursive=True):
        listens = [at for at in process.net_connections("tcp") if at.status == psutil.CONN_LISTEN]
        if port in [at.laddr.port for at in listens]:
            return process
    raise AssertionError(f"no process listens on {port}")
