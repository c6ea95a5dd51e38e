"""Events on their way from threads to the coroutines of a loop."""

from __future__ import annotations

import asyncio
import threading

from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.protocol.events import Event, EventKind


def event(request_id: str, body: bytes = b"") -> Event:
    """An event of a request."""
    return Event(request_id, EventKind.PART, body)


def test_late_events_are_dropped() -> None:
    """Before any request, after a request's end, and after the loop's."""
    mailbox = AsyncMailbox()
    mailbox.post(event("r"))

    async def play() -> None:
        mailbox.expect("r")
        mailbox.post(event("r"))
        mailbox.post(event("other"))
        assert await mailbox.take("r") == [event("r")]
        mailbox.forget("r")
        mailbox.forget("r")

    asyncio.run(play())
    mailbox.post(event("r"))
    assert len(mailbox) == 0


def test_events_of_many_threads_come_whole_and_in_order() -> None:
    """None is lost, however they meet the loop's turns."""
    count = 500
    names = ("a", "b", "c", "d")
    mailbox = AsyncMailbox()

    def post(name: str) -> None:
        for number in range(count):
            mailbox.post(event(name, b"%d" % number))

    async def read(name: str) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            found += [int(one.body) for one in await mailbox.take(name)]
        return found

    async def play() -> list[list[int]]:
        for name in names:
            mailbox.expect(name)
        threads = [threading.Thread(target=post, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        found = await asyncio.gather(*map(read, names))
        for thread in threads:
            thread.join()
        return found

    assert asyncio.run(play()) == [list(range(count))] * len(names)


def test_a_reader_that_is_cancelled_leaves_the_events() -> None:
    """The next one takes them."""
    mailbox = AsyncMailbox()

    async def play() -> None:
        mailbox.expect("r")
        reader = asyncio.create_task(mailbox.take("r"))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
        mailbox.post(event("r"))
        assert await mailbox.take("r") == [event("r")]

    asyncio.run(play())


def test_answers_that_wait_are_not_in_flight() -> None:
    """Else a client that reads its stream slowly would use up the places of others."""
    mailbox = AsyncMailbox()
    last = Event("r", EventKind.LAST)

    async def play() -> None:
        for name in ("r", "s"):
            mailbox.expect(name)
        for one in (event("r"), event("s"), last):
            mailbox.post(one)
        await asyncio.sleep(0)
        assert len(mailbox) == 1
        assert mailbox.take_now("r") == [event("r"), last]
        assert len(mailbox) == 2, "it is being written"
        mailbox.post(last)
        await asyncio.sleep(0)
        assert len(mailbox) == 1
        mailbox.forget("r")
        assert len(mailbox) == 1
        assert mailbox.take_now("s") == [event("s")]
        mailbox.forget("s")
        assert len(mailbox) == 0

    asyncio.run(play())
