"""HTML of the page's parts, and the escaping of every text in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.cli.web.markup import (
    error_html,
    file_html,
    files_html,
    reply_html,
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


def test_markdown_is_rendered() -> None:
    """Lists, code, tables and line ends are shown as such."""
    html = reply_html("- a\n- `b`\n\nc\nd\n\n| x | y |\n|---|---|\n| 1 | 2 |\n")
    for tag in ("<li>a</li>", "<code>b</code>", "c<br", "<td>2</td>"):
        assert tag in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![a](http://example.com/a.png)",
        "[a](javascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "```<script>\n<img src=x>\n```",
        '[a](http://example.com "\\"><script>")',
    ],
)
def test_a_model_writes_no_tags(text: str) -> None:
    """HTML is text, pictures are not fetched, and links run no scripts."""
    html = reply_html(text)
    for tag in ("<script", "<img", 'href="javascript', 'href="data', "<a onerror"):
        assert tag not in html


def test_a_link_opens_apart() -> None:
    """A link shows its address, and its page gets no hold of this one."""
    html = reply_html("[a](http://example.com/)")
    assert 'title="http://example.com/"' in html
    assert 'rel="noopener noreferrer"' in html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (r"\(x_1 \{a\} * b * c\)", r"<p><code>\(x_1 \{a\} * b * c\)</code></p>"),
        (r"$\{a\}$ is $$a \\ b$$.", r"<p><code>$\{a\}$</code> is <code>$$a \\ b$$</code>.</p>"),
        (
            "so\n\\[\na \\\\\n+ b\n\\]\n",
            "<p>so</p>\n<pre><code>\\[\na \\\\\n+ b\n\\]\n</code></pre>",
        ),
        (
            "> $$\n> a\n> $$",
            '<blockquote dir="auto">\n<pre><code>$$\na\n$$\n</code></pre>\n</blockquote>',
        ),
        ("$5 and $6, $5-$6, \\$x", "<p>$5 and $6, $5-$6, $x</p>"),
        ("$5 of `a$`", "<p>$5 of <code>a$</code></p>"),
        (r"`\(` and \(", r"<p><code>\(</code> and (</p>"),
    ],
)
def test_formulas_are_shown_as_written(text: str, html: str) -> None:
    """Markdown would take their backslashes for its own, and their marks for lists and emphasis."""
    assert reply_html(text).strip() == html


def test_text_from_right_to_left_has_its_bullets_there() -> None:
    """So does a deep list, whose text is shown."""
    html = reply_html("- \u05d0\n\n> \u05d0\n\n| \u05d0 |\n|---|\n" + "- " * 30 + "deep")
    for tag in ("<ul dir=", "<blockquote dir=", "<table dir=", "deep"):
        assert tag in html
