"""Slots that are shared out between clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ts_stateful.media.fair_slots import FairSlots, Ticket
from ts_stateful.protocol.errors import QuotaExceeded


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def granted(tickets: list[Ticket]) -> int:
    return sum(ticket.granted.done() and not ticket.granted.cancelled() for ticket in tickets)


def test_a_client_has_at_most_its_share() -> None:
    """More of its work waits, while another client's goes on."""

    async def test() -> None:
        slots = FairSlots(4, 3)
        many = slots.enter("many", object(), 8)
        assert (granted(many), len(slots.waiting)) == (3, 5)
        assert granted(slots.enter("one", object(), 1)) == 1
        slots.leave(many[0])
        assert granted(many) == 4

    run(test)


def test_the_client_with_the_least_work_comes_first() -> None:
    """However many others wait before it."""

    async def test() -> None:
        slots = FairSlots(2, 2)
        many = slots.enter("many", object(), 50)
        one = slots.enter("one", object(), 1)
        assert (granted(many), granted(one)) == (2, 0)
        slots.leave(many[0])
        assert (granted(many), granted(one)) == (2, 1)

    run(test)


def test_of_a_clients_requests_the_one_with_the_least_work_comes_first() -> None:
    """So one anonymous request with many images does not hold the others up."""

    async def test() -> None:
        slots = FairSlots(2, 2)
        large = slots.enter(None, object(), 8)
        small = slots.enter(None, object(), 1)
        slots.leave(large[0])
        assert (granted(large), granted(small)) == (2, 1)

    run(test)


def test_equal_ones_come_in_order() -> None:
    """First come, first served."""

    async def test() -> None:
        slots = FairSlots(1, 1)
        first, second, third = (slots.enter(name, object(), 1)[0] for name in "abc")
        slots.leave(first)
        assert (granted([second]), granted([third])) == (1, 0)

    run(test)


def test_too_much_of_one_client_is_refused_as_a_whole() -> None:
    """Work in progress counts; another client is not concerned; what has left counts no more."""

    async def test() -> None:
        slots = FairSlots(2, 2, max_held=4)
        held = slots.enter("a", object(), 3)
        with pytest.raises(QuotaExceeded) as caught:
            slots.enter("a", object(), 2)
        error = caught.value
        assert (error.status, error.field, error.retry_after_s) == (
            429,
            "handler.media.queuedFetches",
            1.0,
        )
        assert len(slots.waiting) == 1
        slots.enter("b", object(), 4)
        slots.leave(held[0])
        assert len(slots.enter("a", object(), 2)) == 2
        assert slots.enter("a", object(), 0) == []

    run(test)


def test_an_abandoned_request_leaves_the_queue() -> None:
    """Its slots stay until they are returned, once each."""

    async def test() -> None:
        slots, request = FairSlots(1, 1), object()
        tickets = slots.enter("a", request, 3)
        slots.abandon(request)
        assert [ticket.granted.cancelled() for ticket in tickets] == [False, True, True]
        assert (len(slots.running), len(slots.waiting)) == (1, 0)
        for _ in range(2):
            slots.leave(tickets[0])
        assert len(slots.running) == 0
        assert granted(slots.enter("a", object(), 2)) == 1

    run(test)
