"""Which instance takes a request.

Owns the instances, what the endpoint has learned of sessions from their containers, and the choice. Knows nothing of HTTP; the
clock comes from outside.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ts_stateful.protocol.sagemaker import parse_opened
from ts_stateful.sagemaker_local.errors import session_not_found, unavailable

__all__ = ["Instance", "Router"]


@dataclass(eq=False)
class Instance:
    """One container. `num_requests` are those that it has not answered yet."""

    url: str
    in_service: bool = True
    num_requests: int = 0

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Counts a request while it is served."""
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1


@dataclass
class _Place:
    instance: Instance
    expires_at: float  # Unix seconds


class Router:
    """Routes by session: to the instance that opened it, until it is closed or the time has come that `Expires` said."""

    def __init__(
        self, instances: Sequence[Instance], clock: Callable[[], float] = time.time
    ) -> None:
        self.instances = tuple(instances)
        self._clock = clock
        self._places: dict[str, _Place] = {}

    def choose(self, session_id: str | None) -> Instance:
        """The instance for a request about a session, or about none or a new one (None).

        A session whose instance is out of service goes to another one and stays there. Whether that one knows it is its own to
        say.

        Raises:
            ServiceError: no open session has that id, or no instance is in service.
        """
        if session_id is None:
            return self._least_loaded()
        self._drop_expired()
        place = self._places.get(session_id)
        if place is None:
            raise session_not_found(session_id)
        if not place.instance.in_service:
            place.instance = self._least_loaded()
        return place.instance

    def opened(self, told: str, instance: Instance) -> None:
        """Takes in that an instance's container has said `<id>; Expires=...`; anything else says nothing."""
        session = parse_opened(told)
        if session is not None:
            self._places[session.session_id] = _Place(instance, session.expires_at)

    def closed(self, session_id: str) -> None:
        """Takes in that a container has closed a session."""
        self._places.pop(session_id, None)

    def num_sessions(self) -> Counter[Instance]:
        """How many open sessions each instance has."""
        self._drop_expired()
        return Counter(place.instance for place in self._places.values())

    def _least_loaded(self) -> Instance:
        """By requests in flight; where these are as many, by open sessions."""
        held = self.num_sessions()
        in_service = [instance for instance in self.instances if instance.in_service]
        if not in_service:
            raise unavailable()
        return min(in_service, key=lambda instance: (instance.num_requests, held[instance]))

    def _drop_expired(self) -> None:
        now = self._clock()
        for session_id in [name for name, place in self._places.items() if place.expires_at <= now]:
            del self._places[session_id]
