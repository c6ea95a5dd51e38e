"""An application of Ray Serve on two nodes with one store: its replicas are killed, added and removed, and sessions go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from websockets.sync.client import connect as websocket

from tests.e2e.ray_cluster import NO_RAY, RayCluster, has_ray, ray_cluster
from tests.e2e.server import ENDLESS, ROOT, endless_model, log_path, pack
from tests.e2e.speak import DEADLINE_S, DIALOGUE, HEADER, SCENE, SCENE_BASE64, eventually
from tests.e2e.test_nodes import NUM_SESSIONS, Disturbance, talk
from ts_stateful.client import RetryPolicy, connect
from ts_stateful.process.drain import is_alive, is_engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not has_ray(), reason=NO_RAY),
]
_MANY = 1000
_POLICY = "ts_stateful.asgi.ray_serve.scaling:SessionScaling"


class Application:
    """The deployed application, and plain HTTP to it."""

    def __init__(self, cluster: RayCluster, archive: Path) -> None:
        self.cluster = cluster
        self._archive = archive
        self._url = f"{cluster.http_url}/predictions/chat"
        self._streams: list[Iterator[str]] = []

    def scale(self, least: int, most: int, sessions: int = _MANY, turns: int = _MANY) -> None:
        """Set the bounds of the number of replicas, and the sessions and turns that one is for."""
        scaling = {
            "min_replicas": least,
            "max_replicas": most,
            "upscale_delay_s": 0,
            "downscale_delay_s": 0,
            "metrics_interval_s": 0.2,
            "look_back_period_s": 1,
            "policy": {
                "policy_function": _POLICY,
                "policy_kwargs": {"sessions": sessions, "turns": turns},
            },
        }
        self.cluster.deploy(
            {
                "name": "chat",
                "import_path": "ts_stateful.asgi:app",
                "args": {"model": str(self._archive)},
                "deployments": [{"name": "sessions", "autoscaling_config": scaling}],
            }
        )

    def has_replicas(self, count: int) -> None:
        """Wait until so many replicas run, and nothing else is about to happen."""

        def settled() -> bool:
            application = self.cluster.application()
            assert application["status"] != "DEPLOY_FAILED", application["message"]
            is_running = application["status"] == "RUNNING"
            return is_running and len(self.cluster.replicas()) == count

        eventually(settled)

    def tell(self, document: dict[str, Any], header: str = "") -> httpx.Response:
        """Send a request over a connection of its own, so that either node's proxy may get it."""
        with httpx.Client(timeout=DEADLINE_S, trust_env=False) as http:
            # The header has any spelling, and may have the end of an answer's.
            name = "TS-Request-Sequence-Id" if ";" in header else HEADER
            headers = {name: header, "x-request-id": "one-of-mine"}
            response = http.post(self._url, json=document, headers=headers)
        assert response.status_code == 200, response.text
        assert response.headers.get_list("x-request-id") == ["one-of-mine"]
        return response

    def open(self) -> str:
        """Open a session that the server names; return the header of the answer."""
        document = {"type": "open", "images": [{"base64": SCENE_BASE64}]}
        return str(self.tell(document).headers[HEADER])

    def stream(self, header: str, stack: ExitStack) -> None:
        """Begin a turn without an end, which lasts until the stack is closed."""
        http = stack.enter_context(httpx.Client(timeout=DEADLINE_S, trust_env=False))
        document = {**ENDLESS, "stream": True}
        request = http.stream("POST", self._url, json=document, headers={HEADER: header})
        lines = stack.enter_context(request).iter_lines()
        next(lines)
        self._streams.append(lines)  # one that is forgotten closes its connection


def replica_of(header: str) -> str:
    """Return the name of the replica that made an id."""
    return header.partition(";")[0].rpartition(".")[2]


def engines_of(replica: int) -> list[psutil.Process]:
    """Return the engines of a replica's process."""
    return [one for one in psutil.Process(replica).children(recursive=True) if is_engine(one)]


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Two replicas, on a node each."""
    folder = tmp_path_factory.mktemp("ray")
    document = yaml.safe_load((ROOT / "model-config.yaml").read_text())
    document["handler"]["store"] = {"url": f"file://{folder / 'store'}", "timeoutSec": 60}
    config = folder / "model-config.yaml"
    config.write_text(yaml.safe_dump(document))
    model = endless_model(folder / "model")
    archive = pack(folder / "archive", "--config", str(config), model=model)
    log = log_path("ray")
    log.unlink(missing_ok=True)
    with ray_cluster(log) as cluster:
        application = Application(cluster, archive)
        application.scale(2, 2)
        application.has_replicas(2)
        yield application


def test_a_session_stays_on_its_replica(application: Application) -> None:
    """The server's names show the replica, those of clients are hashed; no session is read from the store."""
    headers = [application.open() for _ in range(NUM_SESSIONS)]
    assert {replica_of(header) for header in headers} == set(application.cluster.replicas())
    named = [f"client-{number}" for number in range(NUM_SESSIONS)]
    for name in named:
        application.tell({"type": "open", "images": [{"base64": SCENE_BASE64}]}, name)
    for question, answer in DIALOGUE:
        for header in headers + named:
            reply = application.tell({"prompt": question}, header).json()
            assert reply["text"] == answer
            assert reply["timing"]["restored_from"] is None
    for header in headers + named:
        application.tell({"type": "close"}, header)


def test_a_websocket_reaches_one_replica(application: Application) -> None:
    """Its sessions are opened there, and go on over HTTP."""
    url = application.cluster.http_url.replace("http://", "ws://")
    with websocket(f"{url}/v1/sessions", proxy=None) as line:

        def ask(document: dict[str, Any]) -> dict[str, Any]:
            line.send(json.dumps(document))
            answer: dict[str, Any] = json.loads(line.recv(timeout=DEADLINE_S))
            return answer

        opened = ask({"type": "open", "images": [{"base64": SCENE_BASE64}]})
        session = opened["session_id"]
        assert replica_of(session) in application.cluster.replicas()
        for question, answer in DIALOGUE[:3]:
            assert ask({"prompt": question, "session_id": session})["text"] == answer
    for question, answer in DIALOGUE[3:]:
        reply = application.tell({"prompt": question}, session).json()
        assert (reply["text"], reply["timing"]["restored_from"]) == (answer, None)
    application.tell({"type": "close"}, session)


def test_sessions_of_a_killed_replica_go_on(application: Application) -> None:
    """Its next turns have the same texts, though no client repeats a request; its engines exit; it is replaced."""
    headers = [application.open() for _ in range(NUM_SESSIONS)]
    for question, answer in DIALOGUE[:3]:
        for header in headers:
            assert application.tell({"prompt": question}, header).json()["text"] == answer
    replicas = application.cluster.replicas()
    killed = replica_of(headers[0])
    engines = engines_of(replicas[killed])
    assert engines
    os.kill(replicas[killed], signal.SIGKILL)
    for question, answer in DIALOGUE[3:]:
        for header in headers:
            assert application.tell({"prompt": question}, header).json()["text"] == answer
    eventually(lambda: not any(map(is_alive, engines)))
    eventually(lambda: killed not in application.cluster.replicas())
    application.has_replicas(2)
    for header in headers:
        application.tell({"type": "close"}, header)


def outlive(application: Application, disturb: Callable[[], None], policy: RetryPolicy) -> None:
    """Disturb sixteen streams in the middle of a reply; all texts are those of an undisturbed run."""
    with ExitStack() as stack, ThreadPoolExecutor(NUM_SESSIONS) as pool:
        server = stack.enter_context(connect(application.cluster.http_url, policy=policy))
        sessions = [stack.enter_context(server.open(images=[SCENE])) for _ in range(NUM_SESSIONS)]
        calm = list(pool.map(talk, sessions))
        for session in sessions:
            session.rewind(0)
        disturbance = Disturbance()
        talking = [pool.submit(talk, session, disturbance) for session in sessions]
        disturbance.everybody.wait(DEADLINE_S)
        disturb()
        disturbance.over.set()
        assert [one.result() for one in talking] == calm


def test_streams_of_a_killed_replica_go_on(application: Application) -> None:
    """The client library sends the request again, and another replica continues the text."""
    killed, process = min(application.cluster.replicas().items())
    outlive(application, lambda: os.kill(process, signal.SIGKILL), RetryPolicy(max_retries=100))
    eventually(lambda: killed not in application.cluster.replicas())
    application.has_replicas(2)


def test_streams_of_a_removed_replica_go_on(application: Application) -> None:
    """No request fails: a removed replica finishes its turns, and the next ones go to the other replica."""

    def remove() -> None:
        application.scale(1, 1)
        application.has_replicas(1)

    outlive(application, remove, RetryPolicy(max_retries=0))


def test_replicas_follow_open_sessions(application: Application) -> None:
    """One more comes when there are too many for one, and goes when most are closed; the others go on."""
    application.scale(1, 2, sessions=4)
    application.has_replicas(1)
    headers = [application.open() for _ in range(6)]
    application.has_replicas(2)
    headers += [application.open() for _ in range(2)]
    for question, answer in DIALOGUE[:3]:
        for header in headers:
            assert application.tell({"prompt": question}, header).json()["text"] == answer
    for header in headers[2:-2]:
        application.tell({"type": "close"}, header)
    application.has_replicas(1)
    for question, answer in DIALOGUE[3:]:
        for header in headers[:2] + headers[-2:]:
            assert application.tell({"prompt": question}, header).json()["text"] == answer
    for header in headers[:2] + headers[-2:]:
        application.tell({"type": "close"}, header)


def test_replicas_follow_running_turns(application: Application) -> None:
    """They also go when the clients of the turns disconnect."""
    application.scale(1, 2, turns=1)
    application.has_replicas(1)
    headers = [application.open() for _ in range(2)]
    with ExitStack() as stack:
        for header in headers:
            application.stream(header, stack)
        application.has_replicas(2)
    application.has_replicas(1)
    for header in headers:
        application.tell({"type": "close"}, header)
