"""The languages that clients speak, and which of them a request is in.

Owns the order in which they are asked. A dialect translates a request into one of this package's own and says the answer as
its clients expect it; nothing behind the frontend knows that there are dialects.
"""

from __future__ import annotations

from ts_stateful.frontend.dialects.dialect import Dialect, Letter
from ts_stateful.frontend.dialects.djl import Djl
from ts_stateful.frontend.dialects.llava import Llava
from ts_stateful.frontend.dialects.openai import OpenAi
from ts_stateful.frontend.dialects.own import Own
from ts_stateful.frontend.dialects.sglang import Sglang

__all__ = ["Dialects"]


class Dialects:
    """All dialects of the model that TorchServe serves as `model_name`."""

    def __init__(self, model_name: str = "model") -> None:
        self._own = Own()
        self._others: tuple[Dialect, ...] = (OpenAi(model_name), Llava(), Sglang(), Djl())

    def of(self, letter: Letter) -> Dialect:
        """The dialect of a request: this package's own where it is no other.

        Raises:
            InvalidRequest: nothing but its body could tell, and that cannot be read.
        """
        return next((dialect for dialect in self._others if dialect.speaks(letter)), self._own)
