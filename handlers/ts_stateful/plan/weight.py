"""What one session takes in memory, and how that comes about.

Owns the difference between what leaves a device when room is needed and what stays for as long as a session is open.
"""

from __future__ import annotations

from typing import NamedTuple

from ts_stateful.config.sizes import TransformerSize, show_bytes, show_count
from ts_stateful.plan.asked import Asked

__all__ = ["Weight", "weight", "weight_of_tokens"]

_GRAIN = 64  # tokens; memory for states comes in steps of it, and on a GPU grows by a sixteenth


class Weight(NamedTuple):
    """Bytes of a session: `evicted` can leave the device, `kept` stay. Not known where both are None."""

    evicted: int
    kept: int
    arithmetic: str

    @property
    def total(self) -> int:
        """Of a session that is all on the device."""
        return self.evicted + self.kept


def weight(asked: Asked) -> Weight | None:
    """That of the sessions that are asked for; None where nothing tells."""
    if asked.states is not None:
        return Weight(asked.states.num_bytes, 0, asked.states.arithmetic)
    if asked.model is None:
        return None
    return _weight_of_context(asked, asked.model)


def weight_of_tokens(asked: Asked, model: TransformerSize, num_bytes: int) -> int:
    """The longest session, in tokens, that takes at most so many bytes, its images included; 0 where they alone take more."""
    left = num_bytes - model.image_bytes(asked.image_tokens, asked.counted_dtype)
    room = max(0, left) // model.token_bytes(asked.counted_dtype) // _GRAIN * _GRAIN
    return room * 16 // 17 if asked.gpus else room


def _weight_of_context(asked: Asked, model: TransformerSize) -> Weight:
    dtype, tokens, images = asked.counted_dtype, asked.tokens, asked.image_tokens
    room = tokens
    told = f"{model.arithmetic(dtype)}; x {show_count(tokens)} tokens of a session"
    if asked.gpus:
        room = -(-tokens * 17 // (16 * _GRAIN)) * _GRAIN
        told += f", {show_count(room)} with the spare sixteenth in which memory grows"
    evicted, kept = room * model.token_bytes(dtype), model.image_bytes(images, dtype)
    told += f" = {show_bytes(evicted)}"
    if images:
        told += (
            f"; embeddings of {show_count(images)} image tokens x {show_count(model.hidden)}"
            + (f" x {model.feature_maps} maps" if model.feature_maps > 1 else "")
            + f" = {show_bytes(kept)}"
        )
    return Weight(evicted, kept, told)
