"""Conversations that clients keep themselves, on engines with a store."""

from __future__ import annotations

from tests.support.chats import Chats, Told
from tests.support.tiny import llava
from ts_stateful.store.memory import MemoryStore


def test_a_told_conversation_goes_on_in_another_engine() -> None:
    """Its messages as they were told, histories that were left included; what stands alone is not written down."""
    model, store = llava(), MemoryStore()
    here, there = Chats(model, store), Chats(model, store)
    told: Told = ("user", ["Look:", "@1", "and", "@2", "compare."])
    here.say(("user", "Something else."), opens=True)
    first = here.say(told)
    assert first["turn"] == 1
    more: list[Told] = [told, ("assistant", first["text"]), ("user", "Why?")]
    second = there.say(*more)
    assert (second["turn"], second["timing"]["restored_from"]) == (2, "store")
    edited = there.say(*more[:2], ("user", "So?"))
    assert edited["turn"] == 2
    last = Chats(model, store)
    end = last.say(*more[:2], ("user", "So?"), ("assistant", edited["text"]), ("user", "Fine."))
    assert (end["turn"], end["timing"]["restored_from"]) == (3, "store")
    here.say(told, session="alone", opens=True, alone=True, checked=False)
    assert store.list("sessions/alone") == []
