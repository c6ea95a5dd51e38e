"""Requests of many sequences in one body, at the front without TorchServe."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from websockets.sync.client import connect as websocket

from tests.e2e.speak import DEADLINE_S
from tests.e2e.state_server import AsgiStateModels, StateModels
from tests.e2e.steps import Document, StreamLine, number, post, sum_of
from ts_stateful.client import connect
from ts_stateful.client.steps import Steps
from ts_stateful.protocol.errors import StatefulError

MODEL = "counter"


def batch(*requests: Document) -> Document:
    """A batch of these requests."""
    return {"type": "batch", "requests": list(requests)}


def names(count: int) -> list[str]:
    """Ids of sequences that nobody else has."""
    mark = secrets.token_hex(4)
    return [f"{mark}-{index}" for index in range(count)]


def test_each_sequence_makes_its_own_step(asgi_state_models: AsgiStateModels) -> None:
    """Answers come in the order of the requests, of any type, over HTTP, gRPC and WebSocket alike."""
    server, ids = asgi_state_models.server, names(5)
    line = StreamLine(server, MODEL, "")
    with websocket(
        server.http_url.replace("http", "ws") + f"/v1/sessions/{MODEL}", open_timeout=DEADLINE_S
    ) as socket:

        def by_http(document: Document) -> Any:
            response = post(server, MODEL, document)
            assert response.status_code == 200
            return response.json()

        def by_socket(document: Document) -> Any:
            socket.send(json.dumps(document))
            return json.loads(socket.recv(DEADLINE_S))

        sums = [0] * len(ids)
        for ask in (by_http, line.ask, by_socket):
            steps = [number(10 * index + 1, session_id=name) for index, name in enumerate(ids)]
            answers = ask(batch(*steps))["answers"]
            sums = [total + 10 * index + 1 for index, total in enumerate(sums)]
            assert [answer["session_id"] for answer in answers] == ids
            assert [sum_of(answer) for answer in answers] == sums
        info, *closed = by_http(
            batch(
                {"type": "info", "session_id": ids[0]},
                *({"type": "close", "session_id": name} for name in ids),
            )
        )["answers"]
    assert info["turns"] == 3
    assert all(answer["closed"] for answer in closed)
    line.close()


def test_an_error_is_that_of_one_request(asgi_state_models: AsgiStateModels) -> None:
    """The others are answered; nothing of the faulty one has happened."""
    server, (first, second) = asgi_state_models.server, names(2)
    answers = post(
        server,
        MODEL,
        batch(
            number(1, session_id=first),
            {"session_id": second, "inputs": [{"name": "number", "data": ["x"]}]},
            {"type": "batch", "requests": [{}]},
            number(2, session_id=second),
            number(3, session_id=first),  # waits for the one before it
        ),
    ).json()["answers"]
    assert [answer.get("error", {}).get("field") for answer in answers] == [
        *(None, "inputs[0].data", "type", None, None)
    ]
    assert [sum_of(answers[at]) for at in (0, 3, 4)] == [1, 2, 4]
    for name in (first, second):
        post(server, MODEL, {"type": "close", "session_id": name})


def test_a_batch_has_the_limits_of_its_requests(asgi_state_models: AsgiStateModels) -> None:
    """More requests than may be in flight are refused as a whole, as is another form."""
    server = asgi_state_models.server
    many = post(server, MODEL, batch(number(1, session_id="m"), *(4000 * [{"type": "hello"}])))
    assert (many.status_code, many.json()["error"]["field"]) == (400, "requests")
    empty = post(server, MODEL, batch())
    assert (empty.status_code, empty.json()["error"]["field"]) == (400, "requests")
    lost = post(server, MODEL, {"type": "info", "session_id": "m"})
    assert lost.json()["error"]["code"] == "session_not_found"


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_client_steps_sequences_together(
    asgi_state_models: AsgiStateModels, transport: str
) -> None:
    """A refused step leaves its sequence as it was, and disturbs no other."""
    url = getattr(asgi_state_models.server, f"{transport}_url")
    with connect(url, model=MODEL) as server:
        sequences = [server.steps() for _ in range(3)]
        for turn in (1, 2):
            replies = Steps.step_all(sequences, [{"number": [n]} for n in (1, 2, 3)])
            for n, reply in zip((1, 2, 3), replies, strict=True):
                assert not isinstance(reply, StatefulError)
                assert (reply.turn, reply.outputs["sum"].data) == (turn, [n * turn])
        inputs: list[dict[str, Any]] = [{"number": [1]}, {"number": ["x"]}, {"number": [1]}]
        _, refused, _ = Steps.step_all(sequences, inputs)
        assert isinstance(refused, StatefulError)
        assert [each.step({"number": [0]}).turn for each in sequences] == [4, 3, 4]
        for sequence in sequences:
            sequence.close()
        with pytest.raises(ValueError, match="bytes"):
            Steps.step_all(sequences, 3 * [{"number": b"1"}])
        assert Steps.step_all([], []) == []


def test_torchserve_takes_no_batch(state_models: StateModels) -> None:
    """Its frontend gives each request to the sequence that it names."""
    answer = post(state_models.server, MODEL, batch(number(1)))
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "type")
