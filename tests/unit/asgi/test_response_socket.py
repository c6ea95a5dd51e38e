"""Responses over WebSocket that are not stored, and their ends. A test plays the model."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient

from tests.support.fake_dispatcher import NAMES
from ts_stateful.asgi import response_socket
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.response_socket import ResponseConnection
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.pending_response import Response


class PlayedModel:
    """A model that opens a session for each response; `closed` are those that were closed."""

    name, version, names, is_ready = "chat", "1.0", NAMES, True
    config = load_config({})

    def __init__(self) -> None:
        self.num_opened = 0
        self.closed: list[str] = []

    async def has_started(self, timeout_s: float) -> bool:
        """See `ModelFront`."""
        return True

    def check_room(self) -> None:
        """See `ModelFront`."""

    async def exchange(self, _: Any, arrival: Arrival) -> AsyncGenerator[Response, None]:
        """Answer a response by its one event, and a close by nothing."""
        document = json.loads(arrival.data["data"])
        if document.get("type") == "close":
            self.closed.append(document["session_id"])
            return
        self.num_opened += 1
        body = {"type": "response.created", "response": {"id": f"resp_s{self.num_opened}_1"}}
        yield Response(json.dumps(body).encode())


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> PlayedModel:
    """A model behind all sockets."""
    model = PlayedModel()
    monkeypatch.setattr(response_socket, "exchange", model.exchange)
    return model


def asked(model: PlayedModel, streams: list[str]) -> list[str]:
    """Send a frame for each `stream_id` over one socket; return the sessions that were closed before its end."""
    models = Models(cast("list[ModelFront]", [model]))
    endpoint = ResponseConnection.endpoint(models, models.of_openai[0].name)
    app = Starlette(routes=[WebSocketRoute("/v1/responses", endpoint)])
    with TestClient(app).websocket_connect("/v1/responses") as socket:
        for stream in streams:
            frame = {"type": "response.create", "stream_id": stream, "store": False}
            socket.send_json({**frame, "model": "chat", "input": "Hi"})
            assert socket.receive_json()["stream_id"] == stream
        return list(model.closed)


def test_a_response_ends_with_the_next_one_of_its_stream(model: PlayedModel) -> None:
    """The last one of each ends with the connection."""
    asked(model, ["a", "a", "b"])
    assert model.closed == ["s1", "s2", "s3"]


def test_few_streams_are_kept_for_their_next_frame(model: PlayedModel) -> None:
    """A client that gives every frame a `stream_id` of its own opens no end of sessions: the longest unused end."""
    streams = [str(number) for number in range(70)]
    closed = asked(model, [*streams[:64], "0", *streams[64:]])
    assert closed[0] == "s1"  # which the second one of its stream has followed
    assert "s65" not in closed  # that one
    assert closed[1:3] == ["s2", "s3"]
    assert len(model.closed) == 71
