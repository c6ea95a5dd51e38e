"""Text of generated ids, incrementally."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.support.tiny import tokenizer_of
from ts_stateful.language.text.reply import ReplyText

TOKENIZER: PreTrainedTokenizerFast = tokenizer_of("<|endoftext|>")


def encode(text: str) -> list[int]:
    return list(TOKENIZER(text).input_ids)


def stream(ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], ReplyText]:
    reply, shown, pieces = ReplyText(TOKENIZER.backend_tokenizer, stop), 0, []
    for token_id in ids:
        stopped = reply.push(token_id)
        pieces.append(reply.text[shown:])
        shown = len(reply.text)
        if stopped:
            break
    pieces.append(reply.finish()[shown:])
    return pieces, reply


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_pieces_are_whole_characters_and_make_the_whole(text: str) -> None:
    """No piece has half a character, and together they are what was encoded."""
    pieces, reply = stream(encode(text))
    assert "".join(pieces) == text == reply.text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.lists(st.integers(1, 400), max_size=30))
def test_any_ids_give_what_decode_gives(ids: list[int]) -> None:
    """Also ids that no tokenizer would produce."""
    pieces, _ = stream(ids)
    assert "".join(pieces) == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_special_tokens_are_not_shown() -> None:
    """They control the model; they are not text."""
    pieces, _ = stream([*encode("ab"), 0, *encode("cd")])
    assert "".join(pieces) == "abcd"


@given(st.text("ab<|", min_size=1, max_size=40), st.text("ab<|", min_size=1, max_size=6))
def test_a_stop_string_is_never_shown(text: str, stop: str) -> None:
    """The reply ends before its first occurrence, and no piece reveals a part of it."""
    pieces, reply = stream(encode(text), (stop,))
    expected = text.split(stop, maxsplit=1)[0]
    assert "".join(pieces) == reply.text == expected
    assert reply.stopped == (stop in text)


def test_the_earliest_stop_string_wins() -> None:
    """Of several, the one that begins first."""
    _, reply = stream(encode("one two three"), ("three", "two"))
    assert reply.text == "one "


def test_a_stop_string_before_half_a_character_ends_the_reply() -> None:
    """An id may end one character and begin another; the reply ends before the other is whole."""
    both = encode("äö")[0]
    assert TOKENIZER.decode([both]) == "ä\ufffd"
    pieces, reply = stream([*encode("a"), both], ("ä",))
    assert "".join(pieces) == reply.text == "a"
    assert (reply.stopped, reply.num_kept, reply.rest) == (True, 1, "")


@pytest.mark.parametrize(
    ("text", "stop", "rest"),
    [
        ("hello END more", "END", ""),
        ("hello END more", "ND", ""),
        ("what color", "color", " "),
        ("what color", "olo", " c"),
        ("x", "y", ""),
        ("a\u20ac", "\u20ac", ""),
    ],
)
def test_the_ids_kept_carry_the_text(text: str, stop: str, rest: str) -> None:
    """No id of a stop string enters the log; what one of its ids has before it is the rest."""
    ids = encode(text)
    _, reply = stream(ids, (stop,))
    assert TOKENIZER.decode(ids[: reply.num_kept]) + reply.rest == reply.text
    assert reply.rest == rest


@given(st.text("ab<|", min_size=1, max_size=40), st.text("ab<|", min_size=1, max_size=6))
def test_a_stop_string_is_the_end_if_it_is_included(text: str, stop: str) -> None:
    """Nothing is held back for it, and nothing after it is shown."""
    reply, pieces = ReplyText(TOKENIZER.backend_tokenizer, (stop,), includes_stop=True), ""
    for token in encode(text):
        stopped = reply.push(token)
        assert reply.text.startswith(pieces)
        pieces = reply.text
        if stopped:
            break
    head, found, _ = text.partition(stop)
    assert reply.finish() == head + found
    assert reply.stopped == (stop in text)
