"""What it costs to have the KV states of a session again once they are dropped.

Owns the estimate by which the table chooses whom to evict. Knows nothing of who asks, and measures nothing.
"""

from __future__ import annotations

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.network.load import Model

__all__ = ["RecomputeCost"]

_READ = 0.1  # of what computing takes; from the store


class RecomputeCost:
    """The time for a byte of KV states, relative to computing the first token of a session.

    Linear layers take the same for every token, attention takes what is behind it, so half of a session's length on average: it
    takes as long as everything else when a session has as many tokens as the model has parameters for each number that its
    layers hand on.
    """

    def __init__(self, model: Model) -> None:
        width = model.network.config.get_text_config(decoder=True).hidden_size
        handed_on = int(width) * len(model.forward.layout.layers)
        self._even_tokens = max(1.0, model.num_parameters / handed_on)

    def __call__(self, context: Context) -> float:
        """That of a session's states, of which those in the store are read instead."""
        length = max(1, context.kv.length)
        computed = max(0, length - context.stored.num_tokens) / length
        return (1 - computed) * _READ + computed * (1 + length / self._even_tokens)
