"""Tabs of browsers: files that wait, panes, and remembered sessions."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.fake_sessions import FakeSessions, Fault
from ts_stateful.cli.chat import ChatOptions
from ts_stateful.cli.chat.files import FileRefused, Files
from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.cli.web.live_reply import LiveReply
from ts_stateful.cli.web.saved import SavedTurn
from ts_stateful.cli.web.tab import BrowserTab
from ts_stateful.client import PromptOptions, RetryPolicy, Server, Session, connect
from ts_stateful.protocol.errors import InternalError, SessionExpired

_LONG_S = 60.0


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """A connection without retries."""
    with connect(url, policy=RetryPolicy(max_retries=0)) as server:
        yield server


@pytest.fixture
def tab(server: Server, tmp_path: Path) -> BrowserTab:
    """A tab without a history, whose uploads are in the folder `up`."""
    (tmp_path / "up").mkdir()
    for path in (tmp_path / "up" / "a.png", tmp_path / "up" / "a.wav", tmp_path / "secret.png"):
        path.write_bytes(b"content")
    tab = BrowserTab(server, ChatOptions(), tmp_path / "up")
    tab.meet(server.hello().limits)
    return tab


def ask(tab: BrowserTab, prompt: str, pane: int = 0) -> str:
    """Ask, wait for the end, and return what goes back into the box."""
    live = tab.ask(pane, prompt, PromptOptions(), None)
    assert live is not None
    assert live.wait(_LONG_S)
    return tab.finish(tab.panes[pane])


def test_files_wait_for_the_next_question(
    tab: BrowserTab, tmp_path: Path, fake: FakeSessions
) -> None:
    """They go with it; after a failure they wait again, and the question goes back into the box."""
    picture = str(tmp_path / "up" / "a.png")
    tab.add(picture)
    tab.add("https://example.com/b.png")
    tab.remove("https://example.com/b.png")
    fake.fail("prompt", Fault(error=InternalError("id 7")))
    assert ask(tab, "one") == "one"
    assert list(tab.waiting) == [picture]
    assert ask(tab, "one") == ""
    assert not tab.waiting
    assert [len(prompt["images"]) for prompt in fake.of_kind("prompt")] == [1, 1]


def test_of_two_threads_one_takes_a_reply(
    tab: BrowserTab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeSessions
) -> None:
    """Else the files of a failed question would wait twice."""
    picture = str(tmp_path / "up" / "a.png")
    tab.add(picture)
    fake.fail("prompt", Fault(error=InternalError("id 7")))
    live = tab.ask(0, "one", PromptOptions(), None)
    assert live is not None
    assert live.wait(_LONG_S)
    meet = threading.Barrier(2)

    def has_ended(_: LiveReply) -> bool:
        """Let both be here at once, if they can."""
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(0.2)
        return True

    monkeypatch.setattr(LiveReply, "has_ended", property(has_ended))
    with ThreadPoolExecutor(2) as threads:
        taken = threads.map(tab.finish, [tab.panes[0]] * 2)
        assert sorted(taken) == ["", "one"]
    assert list(tab.waiting) == [picture]


def test_only_uploads_and_urls_are_files(tab: BrowserTab, tmp_path: Path) -> None:
    """No other file of the machine is sent, and no clip to a model that takes none."""
    for name in ("secret.png", "up/../secret.png"):
        with pytest.raises(FileRefused, match="neither an upload nor a URL"):
            tab.add(str(tmp_path / name))
    with pytest.raises(FileRefused, match="takes no clips"):
        tab.add(str(tmp_path / "up" / "a.wav"))
    assert tab.waiting == ()


def test_a_clip_of_another_format_is_refused_by_those_taken(server: Server) -> None:
    """Of a model that only hears: by its name it would be an image."""
    files = Files(msgspec.structs.replace(server.hello().limits, images=0, audio=1))
    with pytest.raises(FileRefused, match=r"takes no images; it takes clips, .* \.wav or \.flac"):
        files.add_images(["a.mp3"])


def test_a_malformed_url_is_refused(tab: BrowserTab) -> None:
    """It would be refused by the server, and could not be shown."""
    with pytest.raises(FileRefused, match="names no file"):
        tab.add("https://[::1/cat.png")
    assert tab.waiting == ()


class Opening:
    """A server that opens a session once it may."""

    def __init__(self, server: Server, error: Exception | None) -> None:
        self.server = server
        self.error = error
        self.may_open = threading.Event()

    def open(self, **options: Any) -> Session:
        """Open a session, or fail."""
        assert self.may_open.wait(_LONG_S)
        if self.error is not None:
            raise self.error
        return self.server.open(**options)


@pytest.mark.parametrize("error", [None, InternalError("id 7")])
def test_a_question_that_was_left_is_kept(
    server: Server, tmp_path: Path, error: Exception | None
) -> None:
    """A reload asks it again until it has a session, which is then listed; after a failure it is shown beside."""
    opening: Any = Opening(server, error)
    tab = BrowserTab(opening, ChatOptions(), tmp_path)
    live = tab.ask(0, "one", PromptOptions(), None)
    assert live is not None
    left = tab.panes[0]
    tab.begin()
    (pending,) = json.loads(tab.to_keep())["pending"]
    again = BrowserTab(server, ChatOptions(), tmp_path)
    assert again.ask_again([msgspec.convert(pending, SavedTurn)]) == "one"
    opening.may_open.set()
    assert live.wait(_LONG_S)
    assert tab.finish(left) == ("one" if error else "")
    assert (left in tab.panes) == bool(error)
    assert [one.title for one in tab.sessions] == ([] if error else ["one"])
    assert json.loads(tab.to_keep())["pending"] == []


def test_the_browser_is_sent_what_it_lacks(tab: BrowserTab) -> None:
    """Neither sessions that it has kept, nor those that this tab has closed, are sent or listed again."""
    for prompt in ("one", "two"):
        ask(tab, prompt)
        tab.begin()
    kept = json.loads(tab.to_keep())["put"]
    assert [one["turns"][0]["prompt"] for one in kept] == ["two", "one"]
    tab.recall(kept)
    assert json.loads(tab.to_keep())["put"] == []
    tab.end(kept[1]["id"])
    tab.recall(kept)
    assert [one.title for one in tab.sessions] == ["two"]


def test_turns_are_drawn_once(tab: BrowserTab) -> None:
    """Another pane and other turns are drawn; an update that was made before counts as such."""
    one, two = {1: Exchange("a", "b")}, {1: Exchange("a", "b")}
    assert [tab.is_drawn(0, one, 1), tab.is_drawn(0, one, 2), tab.is_drawn(1, one, 3)] == [
        False,
        True,
        False,
    ]
    assert not tab.is_drawn(0, two, 6)
    assert not tab.is_drawn(0, one, 5)
    assert tab.is_drawn(0, two, 7)


def test_a_reload_brings_the_panes_back(tab: BrowserTab, server: Server, tmp_path: Path) -> None:
    """What one tab has written for the browser shows the same sessions in the next one."""
    ask(tab, "one <b>")
    tab.fork(0, 1)
    assert "<" not in tab.to_keep()
    kept = json.loads(tab.to_keep())
    again = BrowserTab(server, ChatOptions(), tmp_path / "up")
    again.recall(kept["put"], kept["shown"])
    again.read()
    assert again.shown == tab.shown
    assert [pane.exchanges[1].prompt for pane in again.panes] == ["one <b>", "one <b>"]
    other = BrowserTab(server, ChatOptions(), tmp_path / "up")
    other.recall(kept["put"])
    assert other.shown == []
    assert len(other.sessions) == 2


def test_ended_sessions_are_marked_and_replaced(tab: BrowserTab, fake: FakeSessions) -> None:
    """The list marks a session that has ended, and the next question in its pane opens another."""
    ask(tab, "one")
    tab.begin()
    fake.fail("info", Fault(error=SessionExpired("idle")))
    tab.check()
    assert [one.state for one in tab.sessions] == ["expired"]
    tab.show(tab.sessions[0].id, 0)
    assert ask(tab, "two") == ""
    assert len(fake.sessions) == 2
    assert sorted(one.state for one in tab.sessions) == ["expired", "open"]


def test_a_closed_session_leaves_the_list(tab: BrowserTab, fake: FakeSessions) -> None:
    """It is closed on the server, and the browser drops it; forks go on."""
    ask(tab, "one")
    tab.fork(0, 1)
    first, second = tab.shown
    tab.end(first)
    assert fake.closed == {first}
    assert tab.shown == [second]
    assert json.loads(tab.to_keep())["drop"] == [first]


def test_a_pane_has_one_turn_at_a_time(tab: BrowserTab) -> None:
    """A second question waits in its box, and an empty one is not asked."""
    live = tab.ask(0, "one", PromptOptions(), None)
    assert live is not None
    assert tab.ask(0, "two", PromptOptions(), None) is None
    assert live.wait(_LONG_S)
    tab.finish(tab.panes[0])
    assert tab.ask(0, "  ", PromptOptions(), None) is None
