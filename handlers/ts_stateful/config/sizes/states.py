"""The bytes of a sequence of a model with recurrent state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ts_stateful.config.sizes.quantities import show_bytes
from ts_stateful.protocol.declarations import Datatype, State

__all__ = ["StatesSize"]

# The names have the bits of an element, except for BOOL.
_ITEM_BYTES = {kind: int(kind.value.lstrip("BFILNOPTU") or 8) // 8 for kind in Datatype}


@dataclass(frozen=True)
class StatesSize:
    """The size of one sequence's states, with its arithmetic; `declared`: a configuration declares these states."""

    num_bytes: int
    arithmetic: str
    declared: bool = True

    @classmethod
    def of(cls, states: Sequence[State]) -> StatesSize:
        """Compute the size of declared states; a growing one has room for its `max` from the beginning."""
        total = sum(s.num_elements * (s.max or 1) * _ITEM_BYTES[s.datatype] for s in states)
        terms = " + ".join(_term(state) for state in states)
        return cls(total, f"{terms} = {total:,} bytes a sequence")

    @classmethod
    def given(cls, num_bytes: int) -> StatesSize:
        """Return a size that the user has computed."""
        return cls(num_bytes, f"{show_bytes(num_bytes)} a sequence, as given", declared=False)


def _term(state: State) -> str:
    sizes = [state.max or 0 if size < 0 else size for size in state.shape]
    shape = " x ".join(f"{size:,}" for size in sizes) or "1"
    return f"{state.name} {shape} x {_ITEM_BYTES[state.datatype]} bytes ({state.datatype.value})"
