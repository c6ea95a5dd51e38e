"""Sessions in a store: adopted by one engine, while another one lets them expire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.logs import write_log
from tests.unit.session_log.test_records import ENTRIES, OPENED, turn
from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExpired, SessionNotFound
from ts_stateful.session_log.log import Known, Log, append, read
from ts_stateful.session_log.ownership import adopt, end, has_more
from ts_stateful.session_log.records import Closed, Entry
from ts_stateful.store.backends.memory import MemoryStore

LOG = ENTRIES[:2]
EXPIRED = Closed(at=5.0, writer="old", reason="expired")


class InterruptedStore(MemoryStore):
    """Somebody else does something before its call number `when`."""

    def __init__(self) -> None:
        super().__init__()
        self.when = -1
        self.meanwhile: Callable[[], None] = lambda: None

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        self._interrupt()
        return super().create(key, data, ttl_s)

    def get(self, key: str) -> bytes | None:
        self._interrupt()
        return super().get(key)

    def list(self, prefix: str) -> list[str]:
        self._interrupt()
        return list(super().list(prefix))

    def delete(self, prefix: str) -> None:
        self._interrupt()
        super().delete(prefix)

    def _interrupt(self) -> None:
        self.when -= 1
        if self.when == -1:
            self.meanwhile()


@pytest.fixture
def store() -> InterruptedStore:
    """One with a session `s`."""
    store = InterruptedStore()
    write_log(store, "s", LOG)
    return store


def taken(store: MemoryStore, session_id: str = "s") -> list[Entry]:
    return adopt(store, session_id, lambda log: log.entries, writer="new", now=2.0)


def known(store: MemoryStore, session_id: str = "s") -> Known:
    return read(store, session_id).known


def test_what_has_become_of_a_session_is_known(store: InterruptedStore) -> None:
    """Closed, expired, or never there; also where its removal was interrupted."""
    assert taken(store) == LOG
    end(store, "s", Closed(at=5.0), known(store))
    with pytest.raises(SessionClosed):
        taken(store)
    assert store.list("adopted") == []
    end(store, "s", EXPIRED, write_log(store, "s", [OPENED]))  # another one of that id
    with pytest.raises(SessionExpired):
        taken(store)
    write_log(store, "left", [OPENED, EXPIRED])
    with pytest.raises(SessionExpired):
        taken(store, "left")
    with pytest.raises(SessionNotFound):
        taken(store, "never")


def test_what_cannot_be_used_is_not_adopted(store: InterruptedStore) -> None:
    """It expires where it was."""

    def refuse(log: Log) -> None:
        raise SessionNotFound("made by another model")

    with pytest.raises(SessionNotFound, match="another model"):
        adopt(store, "s", refuse, writer="new", now=2.0)
    end(store, "s", EXPIRED, known(store))
    assert not store.list("sessions")


def test_another_session_of_its_id_does_not_expire(store: InterruptedStore) -> None:
    """Whoever held the first one has not heard of its end, nor of the second one."""
    before = known(store)
    end(store, "s", Closed(at=5.0), before)
    another: list[Entry] = [OPENED, turn(1, writer="another")]
    write_log(store, "s", another)
    end(store, "s", EXPIRED, before)
    assert taken(store) == another
    assert has_more(store, "s", before)


@pytest.mark.parametrize("num_entries", [0, 1])
def test_what_has_gone_on_has_not_expired(store: InterruptedStore, num_entries: int) -> None:
    """Whoever knows less of it, or nothing, leaves it alone; a close is meant."""
    less = write_log(MemoryStore(), "s", LOG[:num_entries])
    end(store, "s", EXPIRED, less)
    assert taken(store) == LOG
    assert has_more(store, "s", less)
    assert not has_more(store, "s", known(store))
    end(store, "s", Closed(at=5.0), less)
    assert read(store, "s") == ([], Known())


@pytest.mark.parametrize("when", range(14))
@pytest.mark.parametrize("interrupted", ["adopt", "end"])
def test_one_of_two_sees_the_other(store: InterruptedStore, interrupted: str, when: int) -> None:
    """Whenever one adopts a session and another one lets it expire: it is adopted and there, or has expired and is not."""
    adopted: list[list[Entry]] = []
    over: list[SessionError] = []

    def take() -> None:
        try:
            adopted.append(taken(store))
        except SessionError as error:
            over.append(error)

    before = known(store)

    def expire() -> None:
        end(store, "s", EXPIRED, before)

    both: dict[str, Callable[[], None]] = {"adopt": take, "end": expire}
    inner = both.pop("end" if interrupted == "adopt" else "adopt")
    store.when, store.meanwhile = when, inner
    both.popitem()[1]()
    if store.when >= 0:  # the first one was done before
        store.when = -1
        inner()
    assert len(adopted) + len(over) == 1
    if adopted:
        assert read(store, "s").entries == adopted[0] == LOG
        assert append(store, "s", before, ENTRIES[2])
    else:
        assert isinstance(over[0], SessionExpired)
        assert read(store, "s").entries == []
