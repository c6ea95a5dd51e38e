"""Names of conversations for routing."""

from __future__ import annotations

import pytest

from ts_stateful.frontend.parsing.affinity import affinity_of
from ts_stateful.frontend.parsing.headers import HeaderNames, RequestHeaders
from ts_stateful.protocol.chat import Chat, RawPrompt, Said
from ts_stateful.protocol.requests import Image

FIRST = (Said("system", ("Be brief.",)), Said("user", (None, "What is it?")))
REPLY = Said("assistant", ("A cat.",))
IMAGE = Image(url="http://a/cat.png")
NAMES = HeaderNames("id", "end", frozenset({"id"}), frozenset({"start"}), frozenset({"end"}))


def names(
    *messages: Said, images: tuple[Image, ...] = (IMAGE,), dialogue: str | None = None
) -> tuple[str, ...]:
    return affinity_of(Chat(messages=messages, images=images), dialogue)


def test_a_request_names_the_one_that_it_continues() -> None:
    """By its messages without the last reply and what follows."""
    (first,) = names(*FIRST)
    second = names(*FIRST, REPLY, Said("user", ("Which?",)))
    third = names(*FIRST, REPLY, Said("user", ("Which?",)), REPLY, Said("user", ("Why?",)))
    assert second[1] == first
    assert third[1] == second[0]
    assert len({first, second[0], third[0]}) == 3


def test_other_texts_roles_and_images_have_other_names() -> None:
    """Also where the same characters are cut differently."""
    different = [
        names(*FIRST),
        names(FIRST[0], Said("user", (None, "What is", " it?"))),
        names(FIRST[0], Said("assistant", (None, "What is it?"))),
        names(*FIRST, images=(Image(url="http://a/dog.png"),)),
        names(Said("system", ("Be brief.\ud800",)), FIRST[1]),
    ]
    assert len({found[0] for found in different}) == len(different)


def test_a_text_names_those_that_begin_with_it() -> None:
    """The next ones of a text find it, however long its reply was, and short texts have no name."""
    text = "".join(map(chr, range(300, 800)))
    named = {n: affinity_of(RawPrompt(prompt=text[:n]), None) for n in (63, 64, 127, 128, 300, 500)}
    assert named[63] == ()
    assert named[64] == named[127]
    assert named[127][0] in named[128][1:]
    assert named[300][1:4] == (named[300][0], named[128][0], named[64][0])
    assert named[300] == named[500]
    assert min(map(len, (named[64], named[128], named[300]))) > 2
    assert affinity_of(RawPrompt(prompt="x" + text[1:300]), None)[0] not in named[300]
    assert affinity_of(RawPrompt(prompt=text), "chat-1") == names(*FIRST, dialogue="chat-1")


def test_a_name_of_the_client_counts_alone() -> None:
    """Whatever was said."""
    one, two = names(*FIRST, dialogue="chat-1"), names(REPLY, dialogue="chat-1")
    assert one == two
    assert one[0] == one[1]
    assert names(*FIRST, dialogue="chat-2") != one


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"X-OpenWebUI-Chat-Id": "a"}, "a"),
        ({"x-session-id": "b"}, "b"),
        ({"X-Claude-Code-Session-Id": "c", "thread-id": "d"}, "c"),
        ({"thread-id": "x" * 300}, "x" * 256),
        ({"x-session-id": ""}, None),
        ({}, None),
    ],
)
def test_headers_of_clients_name_conversations(headers: dict[str, str], name: str | None) -> None:
    """They are no session headers."""
    read = RequestHeaders.read({**headers, "host": "a"}, NAMES, minting=False)
    assert (read.dialogue, read.names_session) == (name, False)
