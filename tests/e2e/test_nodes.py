"""Two nodes behind HAProxy, with Redis as their store: one of them is stopped or dies, and its sessions go on at the other."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import httpx
import pytest
import websockets.sync.client

from tests.e2e.served import Served
from tests.e2e.server import log_path, profile_server
from tests.e2e.speak import DEADLINE_S, HEADER, SCENE, SCENE_BASE64, Speaker, eventually
from tests.support.haproxy import NO_HAPROXY, Proxy, haproxy, haproxy_binary
from tests.support.redis_server import NO_REDIS, redis_binary, redis_server
from ts_stateful.client import RetryPolicy, Session, connect
from ts_stateful.client.session import PromptOptions
from ts_stateful.process.drain import wait_ended
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

NUM_SESSIONS = 16
LONG: PromptOptions = {"max_new_tokens": 300, "ignore_eos": True}


class Nodes:
    """Servers, and the HAProxy in front of them."""

    def __init__(self, servers: list[LocalServer], proxy: Proxy) -> None:
        self.proxy = proxy
        self._servers = servers
        self._speakers = [Speaker(server) for server in servers]

    @property
    def has_sockets(self) -> bool:
        """Whether the nodes have WebSockets."""
        return all(isinstance(server, Served) for server in self._servers)

    @property
    def num(self) -> int:
        """How many nodes there are."""
        return len(self._speakers)

    def sessions(self) -> list[float]:
        """How many each node holds; one that two of them hold counts twice."""
        return [speaker.figure("StatefulSessionsOpen") for speaker in self._speakers]

    def are_shared(self) -> bool:
        """Whether each node holds some of the sessions, and no session is held twice."""
        held = self.sessions()
        return sum(held) == NUM_SESSIONS and all(held)

    def stop_one(self) -> None:
        """As when the first node is to be updated: its engines finish what they have begun."""
        self._speakers.pop(0).http.close()
        self._servers[0].stop()

    def start_one(self) -> None:
        """It is back, and HAProxy has seen that, which takes a check in which all is well."""
        self._servers[0].start()
        self._speakers.insert(0, Speaker(self._servers[0]))
        eventually(lambda: self.proxy.uses(1))

    def kill_one(self) -> None:
        """Every process of the first node at once, as when its machine is lost."""
        speaker, server = self._speakers.pop(0), self._servers[0]
        if isinstance(server, Served):
            server.kill()
        else:
            engines = server.engines()
            os.killpg(os.getpgid(speaker.worker_pid()), signal.SIGKILL)
            for engine in engines:
                engine.kill()
            wait_ended(engines, DEADLINE_S)
        speaker.http.close()

    def kill_front_and_engines_of_one(self) -> None:
        """Those of the first node, whose supervisor replaces them."""
        server = self._servers[0]
        assert isinstance(server, Served)
        server.kill_front_and_engines()

    def close(self) -> None:
        """Ends what looks at them, not themselves."""
        for speaker in self._speakers:
            speaker.http.close()


def at_once(act: Callable[[LocalServer], None], servers: list[LocalServer]) -> None:
    """Does something with all servers at the same time; it takes seconds for each."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(act, servers))


def node(profile: Profile, folder: Path, name: str, store: dict[str, str]) -> LocalServer:
    """A server that is not started yet, and whose processes are none of this one's."""
    server = profile_server(profile, folder, name=name, handler={"store": store})
    if profile is not Profile.ASGI:
        return server
    (archive,) = (folder / "archive").glob("*.mar")
    return Served(archive, server.ports, log_path(name))


@pytest.fixture(scope="module", params=[Profile.CONTINUOUS, Profile.ASGI])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    """Two of them, started at the same time: TorchServes, or fronts without it."""
    redis, proxy = redis_binary(), haproxy_binary()
    if redis is None or proxy is None:
        pytest.skip(NO_REDIS if redis is None else NO_HAPROXY)
    with ExitStack() as stack:
        store = {"url": stack.enter_context(redis_server(redis))}
        folders = [tmp_path_factory.mktemp("node") for _ in range(2)]
        servers = [
            node(request.param, folder, f"node-{request.param.value}-{number}", store)
            for number, folder in enumerate(folders, start=1)
        ]
        stack.callback(at_once, lambda server: server.__exit__(), servers)
        at_once(lambda server: server.start(), servers)
        ports = [server.ports for server in servers]
        front = "asgi" if request.param is Profile.ASGI else "torchserve"
        log = log_path(f"haproxy-{front}")
        nodes = Nodes(servers, stack.enter_context(haproxy(proxy, ports, log, TS_FRONT=front)))
        stack.callback(nodes.close)
        yield nodes


def test_a_session_stays_on_its_node(nodes: Nodes) -> None:
    """Those that the server names too, of which HAProxy learns from the answer to `open`; both nodes get some."""
    url = f"{nodes.proxy.http_url}/predictions/chat"
    with httpx.Client(timeout=DEADLINE_S, trust_env=False) as http:

        def tell(document: dict[str, object], name: str = "NEW_SESSION") -> httpx.Response:
            response = http.post(url, json=document, headers={HEADER: name})
            assert response.status_code == 200, response.text
            return response

        opening: dict[str, object] = {"type": "open", "images": [{"base64": SCENE_BASE64}]}
        opened = [tell(opening).headers[HEADER] for _ in range(NUM_SESSIONS)]
        assert all("; Expires=" in header for header in opened)
        names = [header.partition(";")[0] for header in opened]
        for _ in range(3):
            for name in names:
                assert tell({"prompt": "Is there a circle?"}, name).json()["text"] == "yes"
        # On a machine that is busy enough HAProxy takes a node for lost, and its sessions go to the other one.
        eventually(lambda: nodes.are_shared() or nodes.proxy.has_lost_one())
        for name in names:
            tell({"type": "close"}, name)
    eventually(lambda: nodes.sessions() == [0, 0] or nodes.proxy.has_lost_one())


def test_a_response_stays_on_its_node(nodes: Nodes) -> None:
    """By the id that a request names, in its path or its body; nothing is computed again."""
    base = f"{nodes.proxy.http_url}/predictions/chat/1.0/v1"
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{SCENE_BASE64}"}
    asked = {"type": "input_text", "text": "Is there a circle?"}
    with httpx.Client(timeout=DEADLINE_S, trust_env=False) as http:

        def send(method: str, path: str, **document: object) -> dict[str, Any]:
            headers = {"X-HTTP-Method-Override": method}
            response = http.request(method, f"{base}{path}", json=document or None, headers=headers)
            assert response.status_code == 200, response.text
            answer: dict[str, Any] = response.json()
            return answer

        first = [{"role": "user", "content": [image, asked]}]
        last = [send("POST", "/responses", input=first) for _ in range(NUM_SESSIONS)]
        for _ in range(3):
            for at, before in enumerate(last):
                after = send(
                    "POST", "/responses", input="And a square?", previous_response_id=before["id"]
                )
                assert send("GET", f"/responses/{after['id']}") == after
                cached = after["usage"]["input_tokens_details"]["cached_tokens"]
                is_whole = cached >= before["usage"]["total_tokens"] - 1
                assert is_whole or nodes.proxy.has_lost_one()
                last[at] = after
        eventually(lambda: nodes.are_shared() or nodes.proxy.has_lost_one())
        for response in last:
            name, _, number = response["id"].rpartition("_")
            for turn in range(int(number), 0, -1):
                send("DELETE", f"/responses/{name}_{turn}")
        made = send("POST", "/conversations", items=first)
        for _ in range(3):
            after = send("POST", "/responses", input="And a square?", conversation=made["id"])
        assert after["usage"]["input_tokens_details"]["cached_tokens"] > 50
        send("DELETE", f"/conversations/{made['id']}")
    eventually(lambda: nodes.sessions() == [0, 0] or nodes.proxy.has_lost_one())


class Disturbance:
    """What happens to streams: it begins when `everybody` is in the middle of a reply, and is `over` some time."""

    def __init__(self) -> None:
        self.everybody = Barrier(NUM_SESSIONS + 1)
        self.over = Event()


def test_a_websocket_reaches_the_node_of_its_session(nodes: Nodes) -> None:
    """A node without TorchServe; the header of the handshake names the session."""
    if not nodes.has_sockets:
        pytest.skip("TorchServe has no WebSockets")
    question = {"prompt": "Is there a circle?"}
    with connect(nodes.proxy.http_url) as connection, connection.open(images=[SCENE]) as session:
        assert session.ask(question["prompt"]) == "yes"
        held = nodes.sessions()
        for path in ("/v1/sessions", "/invocations-bidirectional-stream"):
            with websockets.sync.client.connect(
                f"{nodes.proxy.http_url.replace('http', 'ws')}{path}",
                additional_headers={HEADER: session.session_id},
                proxy=None,
            ) as line:
                line.send(json.dumps({**question, "session_id": session.session_id}))
                assert json.loads(line.recv(timeout=DEADLINE_S))["text"] == "yes"
                assert line.ping().wait(DEADLINE_S)
        assert nodes.sessions() == held or nodes.proxy.has_lost_one()
    for path in ("/v1/responses", "/predictions/chat/v1/responses"):
        address = f"{nodes.proxy.http_url.replace('http', 'ws')}{path}"
        with websockets.sync.client.connect(address, proxy=None) as line:
            line.send(json.dumps({"type": "response.create", "input": "Go.", "store": False}))
            types = [json.loads(line.recv(timeout=DEADLINE_S))["type"]]
            while types[-1] not in ("response.completed", "response.incomplete"):
                types.append(json.loads(line.recv(timeout=DEADLINE_S))["type"])
        assert types[0] == "response.created"
    eventually(lambda: nodes.sessions() == [0, 0] or nodes.proxy.has_lost_one())


def talk(session: Session, disturbance: Disturbance | None = None) -> list[str]:
    """What one session is told, and the replies, of which the first is disturbed, and the last comes behind that."""
    reply = session.prompt("What color is the circle?", **LONG)
    pieces = iter(reply)
    first = next(pieces)
    if disturbance is not None:
        disturbance.everybody.wait(DEADLINE_S)
    replies = [first + "".join(pieces)]
    replies += [session.ask(question) for question in ("And the square?", "Is there a triangle?")]
    if disturbance is not None:
        assert disturbance.over.wait(DEADLINE_S)
    replies.append(session.ask("Which shape is yellow?"))
    assert session.info().turns == 4
    return replies


def outlive(nodes: Nodes, disturb: Callable[[], None]) -> None:
    """Sixteen streams over HTTP and gRPC, disturbed in the middle of them: all say what they would have said."""
    with ExitStack() as stack, ThreadPoolExecutor(NUM_SESSIONS) as pool:
        servers = [
            stack.enter_context(connect(url, policy=RetryPolicy(max_retries=100)))
            for url in (nodes.proxy.http_url, nodes.proxy.grpc_url)
        ]
        sessions = [
            stack.enter_context(servers[number % 2].open(images=[SCENE]))
            for number in range(NUM_SESSIONS)
        ]
        calm = list(pool.map(talk, sessions))
        for session in sessions:
            session.rewind(0)
        # Some may have moved: where a busy node was late with an answer, HAProxy takes it for lost.
        eventually(lambda: all(nodes.sessions()))
        disturbance = Disturbance()
        talking = [pool.submit(talk, session, disturbance) for session in sessions]
        disturbance.everybody.wait(DEADLINE_S)
        disturb()
        disturbance.over.set()
        assert [one.result() for one in talking] == calm
        # Of two nodes, one may still hold what the other one has continued.
        eventually(lambda: sum(nodes.sessions()) >= NUM_SESSIONS)
        eventually(lambda: nodes.sessions() == [NUM_SESSIONS] or nodes.num == 2)


def test_the_sessions_of_a_killed_front_and_engine_go_on(nodes: Nodes) -> None:
    """At the other node, or at this one, which is back; clients resume their streams."""
    if not nodes.has_sockets:
        pytest.skip("TorchServe's own tests kill its worker and its engines at once")
    outlive(nodes, nodes.kill_front_and_engines_of_one)
    eventually(lambda: nodes.proxy.uses(1))


def test_the_sessions_of_a_stopped_node_go_on_at_the_other_one(nodes: Nodes) -> None:
    """Nobody gets an error, neither for what runs nor for what comes."""
    outlive(nodes, nodes.stop_one)


def test_the_sessions_of_a_lost_node_go_on_at_the_other_one(nodes: Nodes) -> None:
    """The stopped one is back, and every process of it gets SIGKILL."""
    nodes.start_one()
    outlive(nodes, nodes.kill_one)
