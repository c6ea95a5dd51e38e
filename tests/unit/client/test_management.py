"""TorchServe's management API over HTTP: requests and answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ts_stateful.client.errors import ProtocolError, ServerRefused, ServerUnreachable
from ts_stateful.client.management import Management

DESCRIBED = [
    {
        "modelName": "chat",
        "modelVersion": "1.0",
        "modelUrl": "chat.mar",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 65,
        "startupTimeout": 1200,
        "continuousBatching": False,
        "stateful": True,
        "workers": [{"id": "9000", "status": "UNLOADING", "pid": 7, "gpuUsage": "N/A"}],
        "jobQueueStatus": {"remainingCapacity": 998, "pendingRequests": 2},
    }
]


class Api:
    """An API that gives `answer` to every request; `asked` has the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.status = 200
        self.answer: Any = {}
        self.encoding = ""


@pytest.fixture
def api() -> Api:
    """Return the API."""
    return Api()


@pytest.fixture
def management(api: Api) -> Iterator[Management]:
    """Yield its client."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing."""

        def _answer(self) -> None:
            api.asked.append((f"{self.command} {self.path}", self.headers["Authorization"]))
            raw = isinstance(api.answer, bytes)
            body = api.answer if raw else json.dumps(api.answer).encode()
            self.send_response(api.status)
            if api.encoding:
                self.send_header("Content-Encoding", api.encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    client = Management(f"http://127.0.0.1:{server.server_port}", token="key")
    yield client
    client.close()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_is_described(management: Management, api: Api) -> None:
    """The description is of its default version, and never customized."""
    api.answer = DESCRIBED
    description = management.describe("chat")
    assert (description.model_url, description.batch_size) == ("chat.mar", 65)
    assert (description.stateful, description.is_ready, description.waiting) == (True, False, 2)
    assert [worker.pid for worker in description.workers] == [7]
    assert api.asked == [("GET /models/chat", "Bearer key")]


def test_changes_are_waited_for(management: Management, api: Api) -> None:
    """Scaling and registering return when the worker is ready."""
    management.scale("chat", 0, 5)
    management.unregister("chat")
    management.register("chat", "file:///models/chat.mar", 5)
    assert [request for request, _ in api.asked] == [
        "PUT /models/chat?min_worker=0&max_worker=0&synchronous=true",
        "DELETE /models/chat",
        "POST /models?url=file%3A%2F%2F%2Fmodels%2Fchat.mar&model_name=chat&initial_workers=1&synchronous=true",
    ]


def test_errors_are_typed(management: Management, api: Api) -> None:
    """TorchServe's refusals, answers of another server and refused connections have classes of their own."""
    answers: list[Any] = [{}, [], [{"modelName": "chat"}]]
    for answer in answers:
        api.answer = answer
        with pytest.raises(ProtocolError):
            management.describe("chat")
        with pytest.raises(ProtocolError):
            management.models()
    api.answer = {"models": [{"modelName": "chat", "modelUrl": "chat.mar"}]}
    assert management.models() == ["chat"]
    api.status = 404
    api.answer = {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: x"}
    with pytest.raises(ServerRefused) as refused:
        management.describe("x")
    assert refused.value.kind == "ModelNotFoundException"
    missing = Management("http://127.0.0.1:1")
    with pytest.raises(ServerUnreachable):
        missing.describe("chat")
    missing.close()
    with pytest.raises(ValueError, match="HTTP"):
        Management("grpc://127.0.0.1:7071")


@pytest.mark.parametrize(("answer", "encoding"), [(b'["\xff"]', ""), (b"no gzip", "gzip")])
def test_garbage_is_typed(management: Management, api: Api, answer: bytes, encoding: str) -> None:
    """Bytes of another program at that port are a protocol error."""
    api.answer, api.encoding = answer, encoding
    with pytest.raises(ProtocolError):
        management.models()
