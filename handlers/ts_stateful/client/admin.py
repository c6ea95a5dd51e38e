"""The client of a server's administration, over its Unix socket or its port."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from ts_stateful.client.documents import refusal
from ts_stateful.client.errors import ProtocolError, ServerRefused, ServerUnreachable

__all__ = ["AdminClient"]

_TIMEOUT_S = 60.0  # longer than an engine's answer may take


class AdminClient(contextlib.AbstractContextManager["AdminClient"]):
    """Calls of one server, at `unix:///path` or `http://host:port`, as a context manager.

    Raises:
        ValueError: the URL has another form.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        self._socket: Path | None = None
        transport, base = httpx.HTTPTransport(), url
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            self._socket = Path(parts.path)
            transport, base = httpx.HTTPTransport(uds=parts.path), "http://admin"
        elif parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"{url!r} is neither unix:///path nor http://host:port (--admin)")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            transport=transport, base_url=base, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, *path: str, **query: Any) -> dict[str, Any]:
        """Return the document at a path. Raises as `post` does."""
        return self._call("GET", path, query)

    def post(self, *path: str, **query: Any) -> dict[str, Any]:
        """Return the answer to an operation; values of None are left out.

        Raises:
            StatefulError: the server refuses it.
            ClientError: there is no server, or another program answers.
        """
        return self._call("POST", path, query)

    def _call(self, method: str, path: tuple[str, ...], query: dict[str, Any]) -> dict[str, Any]:
        where = "/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in query.items() if value is not None}
        # httpcore does not close a socket that could not be connected, which `top` would repeat every second.
        if self._socket is not None and not self._socket.is_socket():
            raise self._unreachable("there is no socket")
        try:
            response = self._http.request(method, where, params=given)
        except httpx.HTTPError as error:
            raise self._unreachable(str(error)) from error
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise ServerRefused(
                "the port needs the server's token, in the variable TS_STATEFUL_ADMIN_TOKEN",
                status=response.status_code,
            )
        if not response.is_success:
            raise refusal(response.status_code, response.content)
        try:
            document: dict[str, Any] = json.loads(response.content)
        except ValueError:
            raise ProtocolError(f"{self.url} is no administration of this package") from None
        return document

    def _unreachable(self, reason: str) -> ServerUnreachable:
        return ServerUnreachable(
            f"{self.url}: {reason}; is the server running? `ts-stateful serve` prints the URL (--admin)"
        )
