"""Routing of requests to replicas. Ray's own router does the rest."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="no Ray")

from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve.request_router import PendingRequest

from ts_stateful.asgi.ray_serve.router import SessionRouter

_DEPLOYMENT = DeploymentID("sessions")
_NAMES = ("first", "second", "third")


def route(session_id: str, *, died: tuple[str, ...] = ()) -> list[list[str]]:
    """Return the names of the replicas that a request may go to, in their order."""

    async def choose() -> list[list[Any]]:
        router = SessionRouter(_DEPLOYMENT, DeploymentHandleSource.REPLICA)
        router.initialize_state()
        replicas: list[Any] = [
            SimpleNamespace(replica_id=ReplicaID(name, _DEPLOYMENT), max_ongoing_requests=1)
            for name in _NAMES
        ]
        router.update_replicas(replicas)
        for name in died:
            router.on_replica_actor_died(ReplicaID(name, _DEPLOYMENT))
        metadata = RequestMetadata("request", "request", session_id=session_id)
        request = PendingRequest([], {}, metadata)
        return await router.choose_replicas(list(router.curr_replicas.values()), request)

    return [[one.replica_id.unique_id for one in rank] for rank in asyncio.run(choose())]


@pytest.mark.parametrize("session_id", ["f00.second", "f00.second; Expires=2026-01-31T12:00:00Z"])
def test_an_id_names_its_replica(session_id: str) -> None:
    """Also as it is in the header of an answer."""
    assert route(session_id) == [["second"]]


@pytest.mark.parametrize("session_id", [f"client-{number}" for number in range(8)])
def test_other_ids_are_hashed(session_id: str) -> None:
    """The same one at every router; if it has died, one of the others, before the controller notices."""
    ((chosen,),) = route(session_id)
    assert route(f"{session_id}; Expires=2026-01-31T12:00:00Z") == [[chosen]]
    ((heir,),) = route(session_id, died=(chosen,))
    assert heir in set(_NAMES) - {chosen}


def test_an_id_of_a_dead_replica_is_hashed() -> None:
    """Its session is read from the store there."""
    ((heir,),) = route("f00.second", died=("second",))
    assert heir in {"first", "third"}


@pytest.mark.parametrize("session_id", ["", "NEW_SESSION"])
def test_a_request_without_a_session_has_a_choice(session_id: str) -> None:
    """The less busy of two gets it."""
    (rank,) = route(session_id)
    assert len(set(rank)) == 2
