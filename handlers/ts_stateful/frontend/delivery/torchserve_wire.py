"""Puts responses where TorchServe's encoder looks for them.

Owns the quirks of `ts`: the stopping criteria, the request ids that decide which rows are sent, the socket. Knows nothing of
why a response is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ts.handler_utils.utils import create_predict_response

from ts_stateful.frontend.pending_response import Response

__all__ = ["push", "reply"]


def reply(context: Any, responses: Mapping[int, Response], num_rows: int) -> list[bytes]:
    """What `handle()` returns so that exactly these rows are answered.

    TorchServe wants an entry per row; a row whose id is gone from `context.request_ids` is left out of the message, and the
    frontend keeps it open.
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
    """Sends responses before `handle()` returns, or instead of it. Raises OSError when the frontend is gone."""
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
    # Set on every call: TorchServe keeps what was set for the batch before, and fails on a row that is missing there.
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
