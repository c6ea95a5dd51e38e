"""Responses in TorchServe's encoding."""

from __future__ import annotations

from tests.support.fake_torchserve import (
    Prediction,
    Service,
    create_predict_response,
    decode,
    torchserve_service,
)
from ts_stateful.frontend.delivery.torchserve_wire import push, reply
from ts_stateful.frontend.pending_response import Response


def service(pushed: list[list[Prediction]], *request_ids: str) -> Service:
    """A service in the middle of a batch."""
    it = torchserve_service(lambda data, context: [], pushed.append)
    batch = [{"requestId": name.encode(), "headers": [], "parameters": []} for name in request_ids]
    headers, _, it.context.request_ids = it.retrieve_data_for_inference(batch)
    it.context.request_processor = headers
    it.context.cl_socket = it.cl_socket
    return it


def test_only_rows_with_a_response_are_sent() -> None:
    """TorchServe wants a body for every row, and sends those whose id is still there."""
    context = service([], "a", "b", "c").context
    bodies = reply(context, {1: Response(b"x", False, 404, "text/plain", {"X-A": "1"})}, 3)
    assert bodies == [b"", b"x", b""]
    message = create_predict_response(
        bodies, context.request_ids, "Prediction success", 200, context
    )
    headers = {"ts_stream_next": "false", "content-type": "text/plain", "X-A": "1"}
    assert decode(message) == [Prediction("b", "text/plain", 404, "Not Found", headers, b"x")]


def test_there_may_be_no_response() -> None:
    """The message is empty then; the values of the previous batch are removed."""
    context = service([], "a").context
    context.stopping_criteria = [lambda _: True]
    assert reply(context, {}, 1) == [b""]
    assert not context.stopping_criteria
    assert context.request_ids == {}


def test_a_pushed_message_marks_each_of_its_rows_as_ended_or_not() -> None:
    """The others stay as they are."""
    pushed: list[list[Prediction]] = []
    context = service(pushed, "a", "b", "c", "d").context
    push(context, {0: Response(b"x", True), 1: Response(b"y", False), 3: Response(b"z", None)})
    (message,) = pushed
    assert [(row.request_id, row.body, row.more) for row in message] == [
        ("a", b"x", "true"),
        ("b", b"y", "false"),
        ("d", b"z", None),
    ]
    assert list(context.request_ids.values()) == ["a", "b", "c", "d"]
