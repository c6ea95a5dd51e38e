"""HTML of the page's parts, and the escaping of every text in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.cli.web.markup import (
    error_html,
    file_html,
    files_html,
    sessions_html,
    status_html,
    turns_html,
)
from ts_stateful.cli.web.saved import SavedSession, SavedTurn
from ts_stateful.client import ServerUnreachable
from ts_stateful.protocol.answers import Timing, TokenDetails, Usage
from ts_stateful.protocol.errors import InvalidRequest

_EVIL = "<img src=x onerror=alert(1)>\"'&"
_USAGE = Usage(80, 21, TokenDetails(60))


def test_every_text_is_escaped(tmp_path: Path) -> None:
    """Prompts, replies, names of files, errors, models and addresses never become tags or attributes."""
    picture = tmp_path / f"{_EVIL.replace('/', '')}.png"
    picture.write_bytes(b"image")
    saved = SavedSession(id=_EVIL, at=0, turns=(SavedTurn(_EVIL), SavedTurn(_EVIL)), fork_of=_EVIL)
    turn = Exchange(_EVIL, _EVIL, (str(picture), f"https://{_EVIL}/a.png"), _EVIL)
    for html in (
        turns_html({1: turn}),
        files_html([str(picture), f"data:{_EVIL}"], [f"{_EVIL}.wav"]),
        sessions_html([saved], [_EVIL]),
        status_html(_EVIL, _EVIL, _EVIL, _EVIL),
        error_html(InvalidRequest(_EVIL, field=_EVIL)),
    ):
        assert "<img src=x" not in html
        assert "\"'&" not in html
        assert "&lt;img src=x" in html


def test_a_turn_has_its_figures() -> None:
    """The bar divides the prompt into cached and computed tokens; the rate counts the tokens after the first."""
    html = turns_html({1: Exchange("Q", "A", (), "length", _USAGE, Timing(0, 0, 100.0, 600.0))})
    assert "60 cached | 20 computed" in html
    assert 'style="width:75.0%"' in html
    assert "first token 100 ms &middot; 21 tokens &middot; 40 tokens/s" in html
    assert '<span class="badge length">length</span>' in html


def test_a_turn_can_be_forked_and_dropped() -> None:
    """Each turn is forked after itself; the last is undone, the others are gone back to."""
    html = turns_html({1: Exchange("Q", "A"), 2: Exchange("Q", "A")})
    assert html.count('data-do="fork" data-turn="1"') == 1
    assert 'data-do="rewind" data-turn="1" title="Rewind to turn 1"' in html
    assert 'data-do="rewind" data-turn="1" title="Undo turn 2"' in html
    assert "asked elsewhere" in turns_html({1: Exchange("", "A")})


@pytest.mark.parametrize(
    ("name", "start"), [("a b.png", "<img src="), ("a.WAV", "<figure><audio controls")]
)
def test_a_file_is_shown_by_its_kind(tmp_path: Path, name: str, start: str) -> None:
    """A picture is shown, a clip is played; a file that is missing is only named."""
    path = tmp_path / name
    assert file_html(str(path)) == f'<span class="link">{name}</span>'
    path.write_bytes(b"content")
    assert file_html(str(path)).startswith(start)
    assert " b.png" not in file_html(str(path)).split('"')[1]


def test_the_browser_fetches_no_file_of_another_host() -> None:
    """The URL of a picture is text: the server fetches it, the browser does not."""
    html = file_html("https://example.com/cat.png?token=1")
    assert html == (
        '<span class="link" title="https://example.com/cat.png?token=1">example.com/cat.png</span>'
    )


def test_a_malformed_url_is_shown_as_it_is() -> None:
    """A browser may have kept one."""
    assert "https://[::1/cat.png</span>" in file_html("https://[::1/cat.png")


def test_the_state_of_the_server_is_shown() -> None:
    """A server that is down is a state with its reason, and a failed request of it an error in words."""
    assert "connected" in status_html("model", "grpc://host", None, None)
    assert "refused" in status_html("model", "grpc://host", None, "expired")
    assert 'title="no route"' in status_html("model", "grpc://host", "no route", None)
    assert "The server does not answer." in error_html(ServerUnreachable("no route"))
    assert "<b>invalid_request</b> no <code>seed</code>" in error_html(
        InvalidRequest("no", field="seed")
    )


def test_ended_sessions_are_marked() -> None:
    """A closed session is marked and can be forgotten; an open one can be closed."""
    ended = SavedSession(id="a", at=0, state="expired")
    html = sessions_html([ended, SavedSession(id="b", at=0)], ["b"])
    assert '<span class="badge expired">expired</span>' in html
    assert "Forget: Session a" in html
    assert "Close: Session b" in html
    assert html.count("aria-current") == 1
    assert sessions_html([], []) == "<p>No sessions yet.</p>"
