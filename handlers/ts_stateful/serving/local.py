"""Requests to a server on this machine, and its failure to start."""

from __future__ import annotations

import http.client
import json
from typing import Any

from ts_stateful.serving.ports import HOST

__all__ = ["ServerFailed", "get_json"]

_ANSWER_S = 30.0  # for a busy JVM; others answer in milliseconds


class ServerFailed(RuntimeError):
    """The server did not start, or exited by itself; the message has the reason, or the tail of its log."""


def get_json(port: int, path: str, key: str | None = None) -> Any:
    """Return the answer to a GET on loopback with this key, never through a proxy of the environment.

    Raises:
        OSError, http.client.HTTPException, ValueError: there is no answer, or it is no JSON.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S)
    try:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return json.loads(response.read())
    finally:
        connection.close()
