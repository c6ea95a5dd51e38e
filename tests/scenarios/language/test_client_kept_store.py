"""Conversations that clients keep themselves, on engines with a store."""

from __future__ import annotations

from tests.support.chats import Chats, Told
from tests.support.tiny import llama, llava
from ts_stateful.protocol.requests import Fork, Info, Prompt
from ts_stateful.store.backends.memory import MemoryStore
from ts_stateful.store.base import StoreUnavailable


class StoreOfFew(MemoryStore):
    """A store that takes so many entries more, and is full then."""

    num_left = 100

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        if self.num_left == 0:
            raise StoreUnavailable("the store is full", "make room")
        self.num_left -= 1
        return super().create(key, data, ttl_s)


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


def test_what_could_be_written_in_part_only_breaks_no_log() -> None:
    """A history was left, but what was said instead is not there: the session is what the store has of it."""
    model, store = llama(), StoreOfFew()
    here, there = Chats(model, store), Chats(model, store)
    first = here.say(("user", "One"), creates_session=True)
    here.say(("user", "One"), ("assistant", first["text"]), ("user", "Two"))
    store.num_left = 1
    failed = here.say(("user", "Eins"), checked=False)
    assert failed["error"]["code"] == "store_unavailable"
    store.num_left = 100
    more = Prompt(session_id="s", prompt="More", max_new_tokens=4)
    assert here.harness.ask(more)["error"]["code"] == "session_moved"
    assert here.say(("user", "Eins"))["turn"] == 1
    assert here.harness.ask(more)["turn"] == 2
    assert there.harness.ask(Info(session_id="s"))["turns"] == 2


def test_what_could_not_be_begun_has_not_begun() -> None:
    """Neither a session with its first turn nor a fork is there in part, and both can be asked for again."""
    model, store = llama(), StoreOfFew()
    here, there = Chats(model, store), Chats(model, store)
    fork = Fork(session_id="s", new_session_id="f")
    for attempt in (False, True):
        store.num_left = 100 if attempt else 1
        answer = here.say(("user", "One"), creates_session=True, checked=attempt)
        assert ("error" in answer, len(store.list("sessions/s"))) == (not attempt, 2 * attempt)
    for attempt in (False, True):
        store.num_left = 100 if attempt else 1
        answer = here.harness.ask(fork, creates_session=True)
        assert ("error" in answer, len(store.list("sessions/f"))) == (not attempt, 2 * attempt)
    assert there.harness.ask(Info(session_id="f"))["turns"] == 1
