"""What sessions share, on plain integers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.sessions.shared import SharedCache


@dataclass(eq=False)
class Thing:
    """So many bytes by that name."""

    key: str
    num_bytes: int = 10


class Maker:
    """Makes things and counts them."""

    def __init__(self, budget_bytes: int = 25) -> None:
        self.cache: SharedCache[Thing] = SharedCache(budget_bytes)
        self.num_made = 0

    def get(self, key: str, num_bytes: int = 10) -> Thing:
        """Asks for a thing as a session does."""

        def make() -> Thing:
            self.num_made += 1
            return Thing(key, num_bytes)

        return self.cache.get(key, make)


def test_a_thing_is_made_once_for_all_who_use_it() -> None:
    """Everybody gets the same one, and its bytes count once."""
    maker = Maker()
    first, second = maker.get("a"), maker.get("a")
    assert first is second
    assert (maker.num_made, maker.cache.num_found) == (1, 1)
    assert maker.cache.num_bytes == 10


def test_what_nobody_uses_is_gone_unless_it_was_kept() -> None:
    """A thing whose session never came to be leaves nothing behind."""
    maker = Maker()
    maker.get("a")
    assert maker.cache.num_bytes == 0
    maker.cache.keep([maker.get("b")])
    assert maker.cache.num_bytes == 10
    maker.get("b")
    assert maker.num_made == 2


def test_what_is_kept_stays_under_its_budget() -> None:
    """The thing used longest ago goes; being found counts as a use."""
    maker = Maker(budget_bytes=25)
    for key in "ab":
        maker.cache.keep([maker.get(key)])
    maker.get("a")
    maker.cache.keep([maker.get("c")])
    assert maker.cache.num_bytes == 20
    maker.get("a")
    assert maker.num_made == 3
    maker.get("b")
    assert maker.num_made == 4


def test_the_budget_does_not_bound_what_is_in_use() -> None:
    """A thing that somebody uses is found however many others were kept since."""
    maker = Maker(budget_bytes=25)
    used = [maker.get(key) for key in "abcde"]
    maker.cache.keep(used)
    assert maker.cache.num_bytes == 50
    assert [maker.get(key) for key in "abcde"] == used
    used.clear()
    assert maker.cache.num_bytes == 20


def test_what_is_not_worth_it_is_not_kept() -> None:
    """Neither a thing that was never computed nor one larger than the whole budget, which would empty it."""
    maker = Maker(budget_bytes=25)
    maker.cache.keep([maker.get("a"), maker.get("empty", 0), maker.get("large", 26)])
    assert maker.cache.num_bytes == 10
    nothing = Maker(budget_bytes=0)
    nothing.cache.keep([nothing.get("a")])
    assert nothing.cache.num_bytes == 0


def test_eviction_frees_what_nobody_uses() -> None:
    """The thing used longest ago goes first, and only as many as are asked for; one in use gives nothing back."""
    maker = Maker(budget_bytes=100)
    used = maker.get("a")
    for key in "abc":
        maker.cache.keep([maker.get(key)])
    assert maker.cache.evict(0) == maker.cache.evict(-5) == 0
    assert maker.cache.evict(5) == 10
    assert maker.cache.num_bytes == 20
    assert maker.cache.evict() == 10
    assert maker.cache.num_bytes == used.num_bytes
    assert maker.get("a") is used


def test_a_failure_leaves_nothing_behind() -> None:
    """Whoever asks next has it made anew."""
    maker = Maker()

    def fail() -> Thing:
        raise ValueError("cannot be made")

    with pytest.raises(ValueError, match="made"):
        maker.cache.get("a", fail)
    assert maker.get("a").num_bytes == 10


def test_two_who_ask_at_once_get_one() -> None:
    """The second waits for what the first makes, while what is there already is found without waiting."""
    maker = Maker()
    there = maker.get("there")
    making, go_on = threading.Event(), threading.Event()

    def make() -> Thing:
        making.set()
        assert go_on.wait(60)
        return Thing("a")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(maker.cache.get, "a", make)
        assert making.wait(60)
        second = pool.submit(maker.cache.get, "a", make)
        assert maker.get("there") is there
        making.clear()
        go_on.set()
        assert first.result() is second.result()
    assert not making.is_set()


@given(st.lists(st.tuples(st.sampled_from("gdke"), st.sampled_from("abcd"), st.integers(0, 40))))
def test_no_sequence_of_calls_breaks_it(calls: list[tuple[str, str, int]]) -> None:
    """Whatever is asked for, let go, kept and evicted: what is in use is never made again, and all counts once."""
    maker = Maker(budget_bytes=25)
    used: dict[str, Thing] = {}
    for action, key, size in calls:
        if action == "g":
            thing = maker.get(key, size)
            assert used.setdefault(key, thing) is thing
            del thing
        elif action == "d":
            used.pop(key, None)
        elif action == "k" and key in used:
            maker.cache.keep([used[key]])
        elif action == "e":
            before = maker.cache.num_bytes
            assert maker.cache.evict(size) == before - maker.cache.num_bytes
        maker.cache.check_integrity()
        in_use = sum(thing.num_bytes for thing in used.values())
        assert in_use <= maker.cache.num_bytes <= in_use + 25
