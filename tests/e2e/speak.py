"""Speaking to a server with nothing of ours in between: plain HTTP and plain gRPC."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import psutil

from tests.e2e.server import ROOT
from ts_stateful.pb import inference_pb2, inference_pb2_grpc
from ts_stateful.serving.server import LocalServer

__all__ = [
    "DEADLINE_S",
    "DIALOGUE",
    "HEADER",
    "SCENE",
    "SCENE_BASE64",
    "Innocent",
    "Speaker",
    "error_of",
    "eventually",
]

SCENE = ROOT / "examples" / "shapes" / "scene.png"  # a red circle, a blue square, a yellow triangle
SCENE_BASE64 = base64.b64encode(SCENE.read_bytes()).decode()
HEADER = "ts_request_sequence_id"
DEADLINE_S = 120.0  # on a busy machine

# What only somebody can answer who sees the scene and remembers what was said.
DIALOGUE = [
    ("How many shapes are there?", "three"),
    ("What color is the circle?", "red"),
    ("And the square?", "blue"),
    ("Which shape is yellow?", "triangle"),
    ("What color is it?", "yellow"),
    ("Is there a circle?", "yes"),
    ("How many questions have I asked?", "seven"),
]


def error_of(document: Mapping[str, Any]) -> tuple[str, int]:
    """Code and status of an error body."""
    error = document["error"]
    return error["code"], error["status"]


def eventually(condition: Callable[[], bool]) -> None:
    """Returns as soon as something is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.02)


class Speaker:
    """A client of one server."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.url = f"{server.http_url}/predictions/chat"
        self.http = httpx.Client(timeout=DEADLINE_S, trust_env=False)

    def post(
        self, document: Any = None, *, session: str | None = None, **options: Any
    ) -> httpx.Response:
        """One request over HTTP; `content`, `files` and `headers` as httpx has them."""
        headers = dict(options.pop("headers", {}))
        if session is not None:
            headers[HEADER] = session
        if document is not None:
            options["json"] = document
        return self.http.post(self.url, headers=headers, **options)

    def ask(self, document: Any, *, session: str | None = None) -> dict[str, Any]:
        """The JSON answer of a request that must succeed."""
        response = self.post(document, session=session)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def open(self, **fields: Any) -> str:
        """Opens a session on the demo scene; returns its id."""
        document = {"type": "open", "images": [{"base64": SCENE_BASE64}], **fields}
        return str(self.ask(document)["session_id"])

    def events(self, document: Any, *, session: str | None = None) -> Iterator[dict[str, Any]]:
        """The server-sent events of a streamed prompt, as they come."""
        headers = {} if session is None else {HEADER: session}
        with self.http.stream("POST", self.url, json=document, headers=headers) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line:
                    assert line.startswith("data: ")
                    yield json.loads(line.removeprefix("data: "))

    @contextmanager
    def stub(self) -> Iterator[inference_pb2_grpc.InferenceAPIsServiceStub]:
        """The raw gRPC service."""
        with grpc.insecure_channel(self.server.grpc_url.removeprefix("grpc://")) as channel:
            yield inference_pb2_grpc.InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]

    @staticmethod
    def message(
        document: Any, *, session: str | None = None, **inputs: bytes
    ) -> inference_pb2.PredictionsRequest:
        """A gRPC request with a JSON document."""
        return inference_pb2.PredictionsRequest(
            model_name="chat",
            input={"data": json.dumps(document).encode(), **inputs},
            sequence_id=session,
        )

    def engine_pid(self) -> int:
        """The process that holds the model and the sessions."""
        (engine,) = self.server.engines()
        return int(engine.pid)

    def figure(self, name: str) -> float:
        """One of the gauges at the metrics endpoint; TorchServe's follow within seconds, and are not a number before.

        The front without TorchServe has them under names of their own, by engine.
        """
        other = "ts_stateful" + re.sub("([A-Z])", r"_\1", name.removeprefix("Stateful")).lower()
        values = [
            float(line.rpartition(" ")[2])
            for line in self.metrics().splitlines()
            if line.startswith((f"{name}{{", f"{other}{{", f"{other}_total{{"))
        ]
        return sum(values) if values else math.nan

    def worker_pid(self) -> int:
        """The process of TorchServe's worker."""
        (worker,) = self.server.describe()["workers"]
        pid = int(worker["pid"])
        assert psutil.pid_exists(pid)
        return pid

    def metrics(self) -> str:
        """What TorchServe's metrics endpoint says."""
        return self.http.get(f"{self.server.metrics_url}/metrics").text


class Innocent:
    """Somebody else with an open session, whom nothing that happens on the server may disturb.

    A context manager: entering opens the session, leaving closes it and checks that no process was replaced meanwhile.
    """

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._questions = iter(DIALOGUE)

    def __enter__(self) -> Innocent:
        self.session = self._speaker.open()
        self._processes = self._speaker.engine_pid(), self._speaker.worker_pid()
        self.goes_on()
        return self

    def goes_on(self) -> None:
        """Asks the next question of the dialogue; it is answered rightly. There are seven."""
        question, answer = next(self._questions)
        assert self._speaker.ask({"prompt": question}, session=self.session)["text"] == answer

    def __exit__(self, *_: object) -> None:
        self._speaker.ask({"type": "close"}, session=self.session)
        assert (self._speaker.engine_pid(), self._speaker.worker_pid()) == self._processes
