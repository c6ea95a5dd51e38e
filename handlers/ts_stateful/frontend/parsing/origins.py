"""Requests that web pages make a browser send, without the user's will."""

from __future__ import annotations

from collections.abc import Sequence

from ts_stateful.frontend.intake import Parser
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.limits import Parts
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Event, Submit

__all__ = ["OriginGuard"]

_EVERY_ORIGIN = "*"


class OriginGuard:
    """A parser that refuses requests of web pages, but for those of `allowed` origins; `*` allows all.

    Browsers send `Origin` with every POST of a page, also of a page whose name was made to lead to this server. Other clients
    do not. A GET without a body opens nothing.
    """

    def __init__(self, parser: Parser, allowed: Sequence[str]) -> None:
        self._parser = parser
        self._allowed = frozenset(allowed)

    def parse(
        self, pending: PendingResponse, data: Parts, headers: RequestHeaders
    ) -> Submit | Event:
        """See `Parser`.

        Raises:
            InvalidRequest: a page of another origin sent it.
        """
        origin = headers.origin
        if origin is not None and not self._allowed & {origin, _EVERY_ORIGIN}:
            raise InvalidRequest(
                f"web pages of {origin[:100]} may not use this server; allow them in handler.allowedOrigins",
                field="origin",
            )
        return self._parser.parse(pending, data, headers)
