"""What operators do to the sequences of a model with recurrent state."""

from __future__ import annotations

from tests.support.sums import add, starter, total
from ts_stateful.engine.administration import administer
from ts_stateful.protocol.operations import EvictSession, ExpireSession, ListSessions


def test_an_evicted_sequence_keeps_its_states() -> None:
    """They move to host memory, since nothing computes them again."""
    harness = starter(None)(0)
    harness.ask(add(5), creates_session=True)
    listed = administer(harness.engine, ListSessions()).sessions[0].info
    assert (listed.session_id, listed.turns, listed.residency) == ("a", 1, "device")
    evicted = administer(harness.engine, EvictSession("a")).sessions[0].info
    assert (evicted.residency, evicted.device_bytes) == ("host", 0)
    assert evicted.host_bytes > 0
    assert total(harness.ask(add(6))) == 11


def test_an_expired_sequence_ends() -> None:
    """Its slot is free."""
    harness = starter(None)(0)
    harness.ask(add(5), creates_session=True)
    administer(harness.engine, ExpireSession("a"))
    harness.run()
    assert administer(harness.engine, ListSessions()).sessions == ()
