"""The order in which the tensors of idle sessions are dropped."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ts_stateful.sessions.session import Session, StateT

__all__ = ["EvictionCost", "by_cost"]

_StateT_contra = TypeVar("_StateT_contra", contravariant=True)


class EvictionCost(Protocol[_StateT_contra]):
    """The cost of having the tensors of a session again after they were dropped."""

    def __call__(self, state: _StateT_contra, /) -> float:
        """Return the cost for each byte, above 0, in any unit."""
        ...


def by_cost(
    idle: list[Session[StateT]], now: float, cost: EvictionCost[StateT] | None
) -> list[Session[StateT]]:
    """Return idle sessions in the order in which they are dropped; `idle` has the least recently used first.

    One that costs twice as much for each byte may be unused for twice as long. Without a cost, every byte costs the same.
    """
    if cost is None:
        return idle
    # Sorting is stable: equal ones stay in the order of their use.
    return sorted(idle, key=lambda session: (session.last_used - now) / cost(session.state))
