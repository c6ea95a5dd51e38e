"""Tests for every backend of a store. A backend's test file derives a class and provides the fixture `store`."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ts_stateful.store.base import Store

HOSTILE_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "../a",
    "a/.",
    "a\x00b",
    "a\n",
    "a b",
    "a@",
    "~/a",
    "ä",
    "a" * 241,
    "a/" * 300 + "a",
    "*",
    "a\\b",
]


class StoreBehaviour:
    """Tests of the contract in `ts_stateful.store.base`."""

    def test_a_value_is_written_once(self, store: Store) -> None:
        """The second create of a key is False and changes nothing."""
        assert store.get("sessions/a/00000000") is None
        assert store.create("sessions/a/00000000", b"first")
        assert not store.create("sessions/a/00000000", b"second")
        assert store.get("sessions/a/00000000") == b"first"

    @pytest.mark.parametrize("data", [b"", bytes(range(256)), b"x" * 3_000_000])
    def test_bytes_come_back_as_they_were(self, store: Store, data: bytes) -> None:
        """Also empty, binary and long values."""
        assert store.create("blobs/b", data)
        assert store.get("blobs/b") == data

    def test_many_values_are_read_together(self, store: Store) -> None:
        """In the order of their keys, of one session or of several. A missing value is None."""
        keys = [*(f"sessions/a/{position:08d}" for position in range(40)), "blobs/b"]
        for key in keys[1:]:
            assert store.create(key, key.encode())
        found = store.get_many([*reversed(keys), "blobs/b"])
        assert list(found) == [*(key.encode() for key in reversed(keys[1:])), None, b"blobs/b"]
        assert list(store.get_many([])) == []

    def test_a_listing_is_in_order_and_of_whole_segments(self, store: Store) -> None:
        """A session's keys are sorted, and without those of a session with a longer name."""
        for position in (2, 0, 10, 1):
            assert store.create(f"sessions/a/{position:08d}", b"")
        assert store.create("sessions/ab/00000000", b"")
        assert store.create("sessions/a.b/c/d/e", b"")
        own = [f"sessions/a/{position:08d}" for position in (0, 1, 2, 10)]
        assert list(store.list("sessions/a")) == own
        assert list(store.list("sessions/a.b")) == ["sessions/a.b/c/d/e"]
        assert list(store.list("sessions/a.b/c")) == ["sessions/a.b/c/d/e"]
        everything = [*own, "sessions/a.b/c/d/e", "sessions/ab/00000000"]
        assert list(store.list("sessions")) == sorted(everything)
        assert list(store.list("sessions/none")) == []

    def test_a_removal_covers_exactly_the_keys_below(self, store: Store) -> None:
        """Then the keys are free again. A second removal does nothing."""
        for key in ("sessions/a", "sessions/a/0", "sessions/a/b/c", "sessions/ab/0", "blobs/a"):
            assert store.create(key, b"old")
        for _ in range(2):
            store.delete("sessions/a")
            assert list(store.list("sessions")) == ["sessions/ab/0"]
            assert store.get("sessions/a") is None
            assert store.get("blobs/a") == b"old"
        assert store.create("sessions/a/0", b"new")
        store.delete("sessions/a/0")
        assert store.get("sessions/a/0") is None
        store.delete("sessions")
        assert list(store.list("sessions")) == []

    @pytest.mark.parametrize("key", ["sessions/a/00000000", "blobs/b"])
    def test_a_value_is_removed_alone(self, store: Store, key: str) -> None:
        """If it is the one that the caller means. A missing one is no error."""
        others = [f"{key[:-1]}1", f"{key}/0"]
        for one in (key, *others):
            assert store.create(one, b"old")
        store.remove(key, b"ol")
        assert store.get(key) == b"old"
        for _ in range(2):
            store.remove(key, b"old")
            assert [store.get(one) for one in (key, *others)] == [None, b"old", b"old"]
        assert store.create(key, b"new")
        store.remove(key, b"old")
        assert store.get(key) == b"new"

    def test_many_values_are_removed_together(self, store: Store) -> None:
        """Also of several sessions; those that are missing are none, and one may be named twice."""
        keys = [f"sessions/{name}/{position}" for name in "ab" for position in range(3)]
        for key in [*keys, "sessions/a/10", "blobs/b"]:
            store.create(key, b"value")
        store.delete_keys([*keys[1:], keys[1], "sessions/c/0", "kv/a/0", "blobs/b"])
        store.delete_keys([])
        assert store.list("sessions") == [keys[0], "sessions/a/10"]
        assert store.get("blobs/b") is None
        assert store.create(keys[1], b"again")

    def test_a_key_can_be_a_prefix_of_others(self, store: Store) -> None:
        """A value and values below it are independent."""
        assert store.create("a/b", b"1")
        assert store.create("a/b/c", b"2")
        assert store.create("a", b"3")
        assert list(store.list("a")) == ["a/b", "a/b/c"]
        assert list(store.list("a/b")) == ["a/b/c"]
        assert [store.get(key) for key in ("a", "a/b", "a/b/c")] == [b"3", b"1", b"2"]

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_a_key_of_another_form_is_a_defect(self, store: Store, key: str) -> None:
        """Every method refuses it."""
        for call in (
            lambda: store.create(key, b"x"),
            lambda: store.get(key),
            lambda: store.get_many([key]),
            lambda: store.list(key),
            lambda: store.delete(key),
            lambda: store.delete_keys([key]),
            lambda: store.remove(key, b"x"),
        ):
            with pytest.raises(ValueError, match="not a key of the store"):
                call()

    @pytest.mark.parametrize("key", ["a" * 240, "-/--/...", "a/" * 255 + "aa", "s/" + "x" * 226])
    def test_long_and_odd_keys_are_keys(self, store: Store, key: str) -> None:
        """All allowed characters and lengths work."""
        assert store.create(key, b"x")
        assert store.get(key) == b"x"
        store.delete(key)
        assert store.get(key) is None

    def test_of_many_callers_one_creates(self, store: Store) -> None:
        """Eight threads create the same keys. Each key has one winner, whose value stays."""
        callers, rounds = 8, 5
        start = threading.Barrier(callers)

        def create(caller: int) -> list[bool]:
            start.wait()
            return [store.create(f"race/{n}", b"%d" % caller) for n in range(rounds)]

        with ThreadPoolExecutor(callers) as pool:
            won = list(pool.map(create, range(callers)))
        for n in range(rounds):
            winners = [caller for caller in range(callers) if won[caller][n]]
            assert [store.get(f"race/{n}")] == [b"%d" % caller for caller in winners]

    def test_a_create_during_a_removal_does_not_fail(self, store: Store) -> None:
        """The value is kept or removed."""
        stop = threading.Event()

        def remove() -> None:
            while not stop.is_set():
                store.delete("beside/a")

        with ThreadPoolExecutor(1) as pool:
            removing = pool.submit(remove)
            try:
                for n in range(20):
                    assert store.create(f"beside/a/{n}", b"x")
            finally:
                stop.set()
            removing.result()
        assert store.create("beside/a/last", b"x")
        assert store.get("beside/a/last") == b"x"

    def test_a_later_create_does_not_shorten_a_life(self, store: Store) -> None:
        """Neither one with a shorter life nor one without an end."""
        assert store.create("blobs/a", b"x", ttl_s=1000)
        assert not store.create("blobs/a", b"x", ttl_s=0.001)
        assert not store.create("blobs/a", b"x")
        store.sweep()
        assert store.get("blobs/a") == b"x"

    @pytest.mark.parametrize("seed", range(2))
    def test_it_behaves_like_a_dictionary(self, store: Store, seed: int) -> None:
        """Random calls return the same as on a dictionary whose values never change."""
        chance = random.Random(seed)
        known: dict[str, bytes] = {}
        for number in range(40):
            key = "/".join(chance.choices(["a", "ab", "b.c"], k=chance.randint(1, 3)))
            below = [one for one in known if one.startswith(f"{key}/")]
            call = chance.choice(["create", "create", "get", "list", "delete"])
            if call == "create":
                assert store.create(key, b"%d" % number) == (key not in known)
                known.setdefault(key, b"%d" % number)
            elif call == "get":
                assert store.get(key) == known.get(key)
            elif call == "list":
                assert list(store.list(key)) == sorted(below)
            else:
                store.delete(key)
                for one in (key, *below):
                    known.pop(one, None)
