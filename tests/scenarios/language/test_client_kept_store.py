"""Conversations that clients keep themselves, on engines with a store."""

from __future__ import annotations

from tests.support.chats import Chats, Told
from tests.support.memory_store import MemoryStore
from tests.support.store_engines import FailingStore
from tests.support.tiny import llama, llava
from ts_stateful.protocol.requests import Info, Prompt


def test_a_told_conversation_goes_on_in_another_engine() -> None:
    """Its messages as they were told, histories that were left included; what stands alone is not written down."""
    model, store = llava(), MemoryStore()
    here, there = Chats(model, store), Chats(model, store)
    told: Told = ("user", ["Look:", "@1", "and", "@2", "compare."])
    here.say(("user", "Something else."), creates_session=True)
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
    here.say(told, session="alone", creates_session=True, ephemeral=True, checked=False)
    assert store.list("sessions/alone") == []


def test_a_conversation_that_could_not_be_written_stays_as_it_was() -> None:
    """A history was left, but what was said instead is not there."""
    model, store = llama(), FailingStore()
    here, there = Chats(model, store), Chats(model, store)
    first = here.say(("user", "One"), creates_session=True)
    here.say(("user", "One"), ("assistant", first["text"]), ("user", "Two"))
    store.fails = True
    failed = here.say(("user", "Eins"), checked=False)
    assert failed["error"]["code"] == "store_unavailable"
    store.fails = False
    assert here.harness.ask(Prompt(session_id="s", prompt="More", max_new_tokens=4))["turn"] == 3
    assert there.harness.ask(Info(session_id="s"))["turns"] == 3
    assert here.say(("user", "Eins"))["turn"] == 1
