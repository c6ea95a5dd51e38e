"""A request between the worker that has taken it and the engine that answers it.

Owns what is known of its answer, from which another engine can take it up, and how often engines have died with it. Knows
nothing of processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from ts_stateful.events import Event, Submit

__all__ = ["InFlight"]

_MAX_DEATHS_ALONE = 2  # of engines that had nothing else: then it is what they die of
_MAX_DEATHS = 20  # with others in flight, and with progress in between
_SUSPECT_DEATHS = 2  # with others in flight and without progress: the request is tried alone


@dataclass(eq=False)
class InFlight:
    """A request that an engine has not answered; `on_full` is called in place of an answer where there is no room for it."""

    message: Submit
    on_full: Callable[[], None] | None
    sent: bool = False
    answered: bool = False  # by a `LAST` behind which the turn went on
    deaths: int = 0
    fruitless: int = 0  # deaths since its last sign of progress
    alone: int = 0  # of these, with nothing else in flight
    num_chars: int = 0
    token_ids: list[int] = field(default_factory=list)

    @property
    def to_send(self) -> Submit:
        """The request as an engine gets it: behind the first time, with what is known of the reply."""
        if not self.deaths:
            return self.message
        return structs.replace(
            self.message, again=True, skip=self.num_chars, replay=tuple(self.token_ids)
        )

    def died(self, *, alone: bool) -> None:
        """The engine that had it is gone."""
        self.sent = False
        self.deaths += 1
        self.fruitless += 1
        self.alone += alone

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what engines die of, so that it has to be tried alone."""
        return self.fruitless >= _SUSPECT_DEATHS

    @property
    def is_doomed(self) -> bool:
        """Whether it is given up."""
        return self.alone >= _MAX_DEATHS_ALONE or self.deaths >= _MAX_DEATHS

    def progressed(self, event: Event) -> None:
        """The engine has told something of its turn."""
        self.num_chars += event.num_chars
        self.token_ids += event.token_ids
        if event.token_ids:
            self.fruitless = self.alone = 0
