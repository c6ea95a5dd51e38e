"""TorchServe's encoding of responses: stopping criteria, the ids of the rows to send, the socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from ts.handler_utils.utils import create_predict_response

from ts_stateful.frontend.pending_response import Response

__all__ = ["Batch", "push", "reply"]

Batch = Sequence[Mapping[str, Any]]


def reply(context: Any, responses: Mapping[int, Response], num_rows: int) -> list[bytes]:
    """Return what `handle()` must return to answer exactly these rows.

    TorchServe expects an entry per row. It omits a row whose id is missing in `context.request_ids`: that row stays open.
    """
    for idx in list(context.request_ids):
        if idx not in responses:
            del context.request_ids[idx]
    _prepare(context, responses)
    bodies = [b""] * num_rows
    for idx, response in responses.items():
        bodies[idx] = response.body
    return bodies


def push(context: Any, responses: Mapping[int, Response]) -> None:
    """Send responses before `handle()` returns, or instead. Raise OSError if the frontend has exited."""
    _prepare(context, responses)
    message = create_predict_response(
        {idx: response.body for idx, response in responses.items()},
        {idx: context.request_ids[idx] for idx in responses},
        "Prediction success",
        200,
        context,
    )
    context.cl_socket.sendall(message)


def _prepare(context: Any, responses: Mapping[int, Response]) -> None:
    # Set on every call: TorchServe keeps the value of the previous batch, and fails on a row that is missing there.
    context.stopping_criteria = {idx: _verdict(response) for idx, response in responses.items()}
    for idx, response in responses.items():
        context.set_response_status(response.status, HTTPStatus(response.status).phrase, idx)
        if response.content_type:
            context.set_response_content_type(idx, response.content_type)
        for name, value in response.headers.items():
            context.set_response_header(idx, name, value)


def _verdict(response: Response) -> Callable[[Any], bool | None]:
    stop = None if response.more is None else not response.more
    return lambda _body: stop
