"""The worker's lines to TorchServe: its encoding of responses, the end of its connection, and the pipe by which it rings."""

from __future__ import annotations

import functools
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ts.handler_utils.utils import create_predict_response

from ts_stateful.frontend.pending_response import Response

__all__ = ["Batch", "exit_at_hangup", "hear", "push", "reply"]

Batch = Sequence[Mapping[str, Any]]
_BELLS = "TS_STATEFUL_BELLS"  # the folder of the pipes, into which `Doorbell` of `torchserve/classes` writes


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


@functools.cache
def exit_at_hangup(connection: object) -> None:
    """End this process when TorchServe closes the connection. Anything but a socket is ignored.

    Else the worker of the async profile would live on for ever, and that of the sequence profile until its batch has something
    to send. Meanwhile it would look as if the model had a worker.
    """
    if isinstance(connection, socket.socket):
        threading.Thread(target=_exit_at_end, args=(connection,), daemon=True).start()


def _exit_at_end(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(1)  # other threads would keep the process


def hear(model: str, ring: Callable[[], None], environ: Mapping[str, str]) -> bool:
    """Call `ring`, in a thread, when requests for a model wait. Return False where TorchServe does not say so."""
    if _BELLS not in environ:
        return False
    pipe = Path(environ[_BELLS], f"{model}.bell")
    try:
        if not pipe.is_fifo():
            os.mkfifo(pipe, 0o600)
        descriptor = os.open(pipe, os.O_RDWR)  # also while nobody writes
    except OSError:
        return False

    def listen() -> None:
        while os.read(descriptor, 64):
            ring()

    threading.Thread(target=listen, name="bell", daemon=True).start()
    return True
