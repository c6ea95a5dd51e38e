"""Routing of requests to replicas, in Ray Serve's proxies."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import PendingRequest, RunningReplica

from ts_stateful.frontend.parsing.headers import bare_session_id
from ts_stateful.protocol.session_ids import NEW_SESSION

__all__ = ["SessionRouter"]

_CHOICES = 2  # of which the less busy one gets a request without a session
_HEIRS = 8  # by the hash, for replicas that have died and that the controller still names


class SessionRouter(ConsistentHashRouter):
    """A router that sends the requests of a session to one replica.

    An id that a server made ends with the name of its replica. Other ids, and those of a replica that has ended, go to the
    replica that a consistent hash of the id selects, the same at every proxy. A replica with too many requests is waited for.
    """

    def initialize_state(self, **options: Any) -> None:
        """Take the options of `request_router_kwargs`."""
        super().initialize_state(num_fallback_replicas=_HEIRS, **options)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica of the request's session, or two if it has none."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        metadata = pending_request.metadata
        session = bare_session_id(metadata.session_id)
        if session in ("", NEW_SESSION):
            return [random.sample(candidate_replicas, min(_CHOICES, len(candidate_replicas)))]
        _, _, place = session.rpartition(".")
        for replica in candidate_replicas:
            if replica.replica_id.unique_id == place:
                return [[replica]]
        metadata.session_id = session
        ranked: list[list[RunningReplica]] = await super().choose_replicas(
            candidate_replicas, pending_request
        )
        return ranked[:1]
