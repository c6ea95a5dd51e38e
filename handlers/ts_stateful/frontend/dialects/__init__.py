"""The protocols of other servers' clients, and the choice between them.

A dialect translates a request into this package's own protocol, and the answer back. Engines see the own protocol only.
"""

from __future__ import annotations

from collections.abc import Collection

from ts_stateful.frontend.dialects.dialect import Dialect
from ts_stateful.frontend.dialects.djl import Djl
from ts_stateful.frontend.dialects.llava import Llava
from ts_stateful.frontend.dialects.openai import OpenAi
from ts_stateful.frontend.dialects.own import Own
from ts_stateful.frontend.dialects.responses.dialect import ResponsesApi
from ts_stateful.frontend.dialects.served_model import ServedModelName
from ts_stateful.frontend.dialects.sglang import Sglang
from ts_stateful.frontend.parsing.body import RequestBody

__all__ = ["Dialects"]


class Dialects:
    """All dialects of the model that a server has as `model_name`, in the order of their checks.

    OpenAI's clients find its `adapters` as models. With `strict`, requests with fields that have no effect are refused.
    """

    def __init__(
        self, model_name: str = "model", adapters: Collection[str] = (), *, strict: bool = False
    ) -> None:
        served = ServedModelName(model_name, adapters)
        responses = ResponsesApi(served, strict=strict)
        openai = OpenAi(served, strict=strict)
        self._all: tuple[Dialect, ...] = (responses, openai, Llava(), Sglang(), Djl(), Own())

    def of(self, body: RequestBody) -> Dialect:
        """Return the dialect of a request: this package's own if no other matches.

        Raises:
            InvalidRequest: only the body can decide, and it is unreadable.
        """
        return next(dialect for dialect in self._all if dialect.matches(body))
