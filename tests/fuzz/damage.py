"""Inputs made from those of the corpus: cut, spliced, repeated a million times, with words of their format in new places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

__all__ = ["MAX_BYTES", "damaged"]

MAX_BYTES = 4_000_000
_MAX_CHANGES = 4
_MAX_UNIT = 12  # bytes that are repeated
_WORDS = rb"""] { } "": " \ \u \ud800 , null NaN -Infinity 1e400 - . true ; = # .. / // @ %00 % :: 0x7f.1 127.1 localhost
    {"type":" "session_id":" "images":[{"base64":" {"url":" data:image/png;base64, [], {}, 0, "", [ {"a":""".split()
_BYTES = b"\0|\r\n|\n|\x7f|\xff|\xc3\xa9|\xe2\x80\xa8| |\x7f\xff\xff\xff|\x91|\x81|\xc1|\xdd\xff\xff\xff\xff"
_words = st.sampled_from([*_WORDS, *_BYTES.split(b"|"), b"9" * 400])
_places = st.floats(0, 1)  # of the input; so that one place means the same after other changes
_times = st.sampled_from([1, 2, 8, 32, 128, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 20, 1 << 20])

Change = Callable[[bytes], bytes]


def _at(data: bytes, place: float) -> int:
    return min(len(data), int(place * (len(data) + 1)))


def _replace(place: float, size: int, word: bytes) -> Change:
    """Replace so many bytes by a word; none are there before it is inserted."""

    def change(data: bytes) -> bytes:
        index = _at(data, place)
        return data[:index] + word + data[index + size :]

    return change


def _cut(one: float, other: float) -> Change:
    def change(data: bytes) -> bytes:
        start, stop = sorted((_at(data, one), _at(data, other)))
        return data[:start] + data[stop:]

    return change


def _repeat(place: float, size: int, times: int) -> Change:
    """Repeat a few bytes in their place so often that a parser's cost for each of them shows."""

    def change(data: bytes) -> bytes:
        start = _at(data, place)
        unit = data[start : start + size]
        return data[:start] + _many(unit, times) + data[start + size :]

    return change


def _fill(place: float, word: bytes, times: int) -> Change:
    """Fill the next array with many words."""

    def change(data: bytes) -> bytes:
        index = data.find(b"[", _at(data, place)) + 1
        return data[:index] + _many(word, times) + data[index:]

    return change


def _splice(place: float, other: bytes) -> Change:
    return lambda data: data[: _at(data, place)] + other[_at(other, place) :]


def _many(word: bytes, times: int) -> bytes:
    return word * min(times, MAX_BYTES // max(1, len(word)))


def damaged(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Generate bytes: a seed after some changes, of at most `MAX_BYTES`, or anything."""
    changes = st.one_of(
        st.builds(_replace, _places, st.integers(0, 1), _words | st.binary(max_size=6)),
        st.builds(_cut, _places, _places),
        st.builds(_repeat, _places, st.integers(1, _MAX_UNIT), _times),
        st.builds(_fill, _places, _words, _times),
        st.builds(_splice, _places, st.sampled_from(seeds)),
    )
    whole = st.builds(_changed, st.sampled_from(seeds), st.lists(changes, max_size=_MAX_CHANGES))
    return whole | st.binary(max_size=100)


def _changed(data: bytes, changes: Sequence[Change]) -> bytes:
    for change in changes:
        data = change(data)[:MAX_BYTES]
    return data
