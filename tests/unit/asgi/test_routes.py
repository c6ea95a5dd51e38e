"""The paths that a server has, and its answer to all others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketDenialResponse

from tests.support.fake_front import FakeFront, client_of
from tests.unit.asgi.test_admin import PlayedModel
from ts_stateful.asgi.admin import make_admin_app
from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.routes import make_app, make_management_app, make_metrics_app

MODELS = Models(cast("Any", [PlayedModel("chat")]))


@pytest.mark.parametrize(
    ("app", "path", "known"),
    [
        (make_app(MODELS, BodyReader(1000, 1.0)), "/chat/completions", "/predictions/chat, /v1 ("),
        (make_app(MODELS, BodyReader(1000, 1.0)), "/", "/livez, /readyz"),
        (make_management_app(MODELS), "/predictions/chat", "/livez, /readyz"),
        (make_metrics_app(CollectorRegistry()), "/", "/metrics"),
        (make_admin_app(MODELS), "/predictions/chat", "docs/admin.md"),
    ],
)
def test_a_path_with_nothing_names_what_there_is(app: Starlette, path: str, known: str) -> None:
    """As an error of the protocol, so clients show it."""
    answer = TestClient(app).post(path)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "unknown_url"
    assert f"nothing is at {path};" in error["message"]
    assert known in error["message"]


@pytest.mark.parametrize(
    ("app", "method", "path", "allowed"),
    [
        (make_app(MODELS, BodyReader(1000, 1.0)), "PATCH", "/predictions/chat", {"GET", "POST"}),
        (make_management_app(MODELS), "DELETE", "/readyz", {"GET", "HEAD"}),
        (make_metrics_app(CollectorRegistry()), "POST", "/metrics", {"GET", "HEAD"}),
        (make_admin_app(MODELS), "GET", "/drain", {"POST"}),
    ],
)
def test_a_wrong_method_names_those_that_a_path_takes(
    app: Starlette, method: str, path: str, allowed: set[str]
) -> None:
    """As an error of the protocol, and in the header that HTTP has for them."""
    answer = TestClient(app).request(method, path)
    assert answer.status_code == answer.json()["error"]["status"] == 405
    assert allowed <= set(answer.headers["allow"].split(", "))
    assert f"{path} does not take {method};" in answer.json()["error"]["message"]


def test_a_server_without_conversations_does_not_name_openais_path() -> None:
    """No model of it has that API."""
    tensor = {"name": "x", "datatype": "INT64", "shape": [1]}
    handler = {"inputs": [tensor], "outputs": [{"name": "y"}], "states": [{"name": "h"}]}
    front = FakeFront("counter", {"handler": {"model": "m.py:M", **handler}})
    message = client_of(front).get("/nope").json()["error"]["message"]
    assert "/predictions/counter, /v2" in message


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/livez", 200),
        ("POST", "/livez", 405),
        ("GET", "/models", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/chat/infer", 405),
        ("DELETE", "/predictions/chat", 405),
        ("POST", "/predictions/nope", 404),
        ("POST", "/predictions/chat", 200),
    ],
)
def test_every_answer_has_the_names_of_its_request(method: str, path: str, status: int) -> None:
    """Once, whatever has answered. No cache may keep it: a GET can open a session."""
    known = {"x-request-id": "mine", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    body = b'{"prompt": "hi"}'
    answer = client_of(FakeFront()).request(method, path, headers=known, content=body)
    assert answer.status_code == status
    assert {name: answer.headers.get_list(name) for name in known} == {
        name: [value] for name, value in known.items()
    }
    assert answer.headers["cache-control"] == "no-store"


def test_a_defect_is_an_error_of_the_protocol(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the names of its request; the log has the place, and no text, which may quote a prompt."""

    prompt = "Is it red?"

    def fail() -> None:
        raise RuntimeError(prompt)

    front = FakeFront()
    monkeypatch.setattr(front, "check_room", fail)
    answer = client_of(front).post("/predictions/chat", json={}, headers={"x-request-id": "mine"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "internal")
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert "in fail" in caplog.text
    assert "RuntimeError" in caplog.text
    assert prompt not in caplog.text + error["message"]


@pytest.mark.parametrize("path", ["/v1/nope", "/predictions/chat"])
def test_a_socket_at_another_path_is_an_unknown_url(path: str) -> None:
    """As for a request; a bare refusal would look like one of rights."""
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client_of(FakeFront()).websocket_connect(path),
    ):
        pass
    assert (denied.value.status_code, denied.value.json()["error"]["code"]) == (404, "unknown_url")
    assert len(denied.value.headers.get_list("x-request-id")) == 1


def test_another_layer_may_name_requests() -> None:
    """Ray Serve does, and a header that is there twice has two values."""
    app = make_app(MODELS, BodyReader(1000, 1.0), names_requests=False)
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    answer = TestClient(app).get("/nope", headers={"traceparent": trace})
    assert answer.headers["traceparent"] == trace
    assert "x-request-id" not in answer.headers
