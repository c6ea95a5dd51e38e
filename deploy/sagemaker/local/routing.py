"""The choice of an instance for a request."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from deploy.sagemaker.local.errors import session_not_found, unavailable
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.sagemaker import is_session_id

__all__ = ["Instance", "OpenedSession", "Router", "parse_opened"]

_OPENED = re.compile(r"([^;\s]+);\sExpires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", re.ASCII)


class OpenedSession(NamedTuple):
    """A session that a container has opened; `expires_at` in Unix seconds."""

    session_id: str
    expires_at: float


def parse_opened(value: str) -> OpenedSession | None:
    """Parse a container's `X-Amzn-SageMaker-Session-Id`. Return None if it opens no session."""
    match = _OPENED.fullmatch(value)
    if match is None or not is_session_id(match.group(1)):
        return None
    try:
        expires_at = datetime.strptime(match.group(2), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:  # a month 13
        return None
    return OpenedSession(match.group(1), expires_at.replace(tzinfo=timezone.utc).timestamp())


@dataclass(eq=False)
class Instance:
    """One container. `num_requests` counts requests in flight."""

    url: str
    in_service: bool = True
    num_requests: int = 0

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request until it is served."""
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
    """A table of sessions and the instances that opened them, until `Expires` or until they are closed."""

    def __init__(self, instances: Sequence[Instance], clock: Clock = SYSTEM_CLOCK) -> None:
        self.instances = tuple(instances)
        self._clock = clock
        self._places: dict[str, _Place] = {}

    def choose(self, session_id: str | None) -> Instance:
        """Choose the instance for a session, or for a request without a session or with a new one (None).

        A session whose instance is out of service moves to another one and stays there. That one may not have it.

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

    def opened(self, header: str, instance: Instance) -> None:
        """Record a session that a container opened, from `<id>; Expires=...`. Ignore any other value."""
        session = parse_opened(header)
        if session is not None:
            self._places[session.session_id] = _Place(instance, session.expires_at)

    def closed(self, session_id: str) -> None:
        """Remove a session that a container closed."""
        self._places.pop(session_id, None)

    def num_sessions(self) -> Counter[Instance]:
        """Count the open sessions of each instance."""
        self._drop_expired()
        return Counter(place.instance for place in self._places.values())

    def _least_loaded(self) -> Instance:
        """Choose by requests in flight, then by open sessions."""
        held = self.num_sessions()
        in_service = [instance for instance in self.instances if instance.in_service]
        if not in_service:
            raise unavailable()
        return min(in_service, key=lambda instance: (instance.num_requests, held[instance]))

    def _drop_expired(self) -> None:
        now = self._clock.unix()
        for session_id in [name for name, place in self._places.items() if place.expires_at <= now]:
            del self._places[session_id]
