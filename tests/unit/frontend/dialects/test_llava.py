"""The dialect of the sticky-session sample with LLaVA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialects import ask
from tests.support.fake_dispatcher import ID, START
from ts_stateful.protocol.errors import MediaForbidden
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Close, Image, Open, Prompt


@pytest.mark.parametrize("header", [None, "", "NEW_SESSION"])
def test_a_session_is_started_on_an_image(header: str | None) -> None:
    """Its id begins as TorchServe's own ids do, which its clients check."""
    document = {"type": "start_session", "path": "https://x/a.png", "session_id": None}
    exchange = ask(document, headers=None if header is None else {ID: header})
    assert isinstance(exchange.command, Open)
    assert exchange.command.images == (Image(url="https://x/a.png"),)
    assert str(exchange.command.session_id).startswith("ts-seq-")
    assert exchange.submit.creates_session
    assert exchange.answered({"session_id": "s"}) == {"session_id": "s"}


def test_a_session_is_started_under_a_given_id() -> None:
    """The client's, or the one that TorchServe's frontend has made."""
    document = {"type": "start_session", "path": "data:image/png;base64,AA=="}
    assert ask(document, headers={ID: "mine"}).command.session_id == "mine"
    minted = {ID: "ts-seq-1", START: "true"}
    assert ask(document, headers=minted, profile=Profile.SEQUENCE).command.session_id == "ts-seq-1"


def test_an_image_that_is_refused_is_called_by_its_name_here() -> None:
    """Its requests have no field `images`."""
    exchange = ask({"type": "start_session", "path": "http://10.0.0.1/"})
    error = MediaForbidden("not public", field="images[0].url")
    expected = {"success": False, "error": "path: not public", "code": "media_forbidden"}
    assert exchange.fails(error) == (403, expected)


def test_a_prompt_in_a_session() -> None:
    """The header or the body names it."""
    document = {"type": "send_text_prompt", "prompt_text": "hi", "session_id": "s"}
    prompt = Prompt(session_id="s", prompt="hi", max_new_tokens=1024)
    for headers in ({ID: "s"}, None):
        exchange = ask(document, headers=headers)
        assert exchange.command == prompt
        assert exchange.answered() == {"response_text": "red"}


def test_a_session_is_closed() -> None:
    """And the answer is `success`."""
    exchange = ask({"type": "close_session"}, headers={ID: "s"})
    assert exchange.command == Close(session_id="s")
    assert exchange.answered({"session_id": "s", "closed": True}) == {"success": True}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"type": "start_session"}, "path"),
        ({"type": "start_session", "path": 1}, "path"),
        ({"type": "start_session", "path": "https://x", "system": "x"}, "system"),
        ({"type": "send_text_prompt", "session_id": "s"}, "prompt_text"),
        ({"type": "send_text_prompt", "prompt_text": "hi"}, "session"),
        ({"type": "close_session"}, "session"),
        ({"type": "close_session", "session_id": "a b"}, "session id"),
    ],
)
def test_what_is_wrong_is_no_success(document: Any, named: str) -> None:
    """A prompt without a session is wrong too: there would be no image."""
    status, body = ask(document).refusal
    assert (status, body["success"], body["code"]) == (400, False, "invalid_request")
    assert named in body["error"]
