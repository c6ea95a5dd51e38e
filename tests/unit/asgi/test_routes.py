"""The paths that a server has, and its answer to all others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.unit.asgi.test_admin import PlayedModel
from ts_stateful.asgi.admin import make_admin_app
from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.routes import make_app, make_management_app, make_metrics_app

PAGES: Any = {"allowed_origins": ()}


class ServedModel(PlayedModel):
    """A model that no page of the web may use."""

    config = type("Config", (), {"engine": type("Engine", (), PAGES)})


MODELS = Models(cast("Any", [ServedModel("chat")]))


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
