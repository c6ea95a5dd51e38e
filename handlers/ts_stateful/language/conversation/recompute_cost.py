"""The cost of computing a session's KV states again after they are dropped."""

from __future__ import annotations

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.network.load import Model

__all__ = ["RecomputeCost"]

_READ = 0.1  # of the time to compute them; from the store


class RecomputeCost:
    """The time for a byte of KV states, relative to computing the first token of a session.

    Linear layers take the same time for every token. Attention takes time in proportion to the tokens before it, on average
    half of the session. Both are equal when a session has as many tokens as the model has parameters per number that its layers
    pass on.
    """

    def __init__(self, model: Model) -> None:
        passed_on = int(model.forward.text_config.hidden_size) * len(model.forward.layout.layers)
        self._even_tokens = max(1.0, model.num_parameters / passed_on)

    def __call__(self, context: Context) -> float:
        """Return the cost of a session's states; those in the store are read instead."""
        length = max(1, context.kv.length)
        computed = max(0, length - context.stored.num_tokens) / length
        return (1 - computed) * _READ + computed * (1 + length / self._even_tokens)
