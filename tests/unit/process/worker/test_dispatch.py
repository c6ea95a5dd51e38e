"""Several engines of one worker: the spread of sessions, and the independence of the engines."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker import Worker, eventually
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.parsing.affinity import affinity_of
from ts_stateful.process.worker.dispatch import Dispatcher, ServedModel
from ts_stateful.protocol.chat import Chat, RawPrompt, Said
from ts_stateful.protocol.errors import SessionExists
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Close, Fork, Hello, Info, Open, Prompt
from ts_stateful.protocol.stats import Stats

Start = Callable[..., Worker]


@pytest.fixture
def worker(start: Start) -> Worker:
    """A worker with two engines for four sessions each."""
    return start(engines=2)


def opened(worker: Worker, *names: str) -> None:
    """Open these sessions, one after the other."""
    for name in names:
        assert worker.ask(Open(session_id=name), creates_session=True)["session_id"] == name


def refusal(answer: dict[str, Any]) -> str:
    """Return the code of an error."""
    return str(answer["error"]["code"])


def test_sessions_are_spread_over_the_engines(worker: Worker, start: Start) -> None:
    """Each has its share; every session is found where it was opened, also by the next worker."""
    names = [f"s{index}" for index in range(8)]
    opened(worker, *names)
    refused = worker.ask(Open(session_id="more"), creates_session=True)
    assert refusal(refused) == "too_many_sessions"
    assert refused["error"]["retry_after_s"] > 0
    worker.dispatcher.close()
    successor = start(engines=2)
    for name in names:
        assert successor.ask(Prompt(session_id=name, prompt="Hi", max_new_tokens=1))["turn"] == 1


def test_a_session_waits_after_all_engines_were_asked(start: Start) -> None:
    """With a backlog it does not wait at a full engine while another one has room."""
    worker = start(engines=2, max_sessions=2, maxQueuedSequences=1)
    opened(worker, "a", "b")
    waiting = worker.submit(Open(session_id="c"), creates_session=True)
    for name in "ab":
        assert worker.ask(Close(session_id=name))["closed"]
    assert worker.wait(waiting)["session_id"] == "c"
    opened(worker, "d")
    assert worker.ask(Info(session_id="c"))["turns"] == 0


def test_a_full_engine_refuses_no_session_while_another_has_room(worker: Worker) -> None:
    """Whichever of the two has room, and whichever once had a session of that id."""
    names = [f"s{index}" for index in range(8)]
    opened(worker, *names)
    for name in names:
        worker.ask(Close(session_id=name))
        opened(worker, f"{name}-next")
    for name, other in zip(names, reversed(names), strict=True):
        worker.ask(Close(session_id=f"{other}-next"))
        opened(worker, name)
    assert worker.ask(Info(session_id="s0"))["turns"] == 0
    assert refusal(worker.ask(Open(session_id="s0"), creates_session=True)) == "session_exists"


def test_a_conversation_without_a_session_stays_on_its_engine(worker: Worker) -> None:
    """So it finds there what the request before it has computed, although the other engine has less to do."""

    def say(name: str, messages: list[Said]) -> str:
        chat = Chat(session_id=name, messages=tuple(messages), max_new_tokens=2)
        fields = {"creates_session": True, "ephemeral": True, "affinity": affinity_of(chat, None)}
        return str(worker.ask(chat, **fields)["text"])

    told = [[Said("user", (f"Who are you, number {number}?",))] for number in range(4)]
    for turn in range(3):
        opened(worker, f"s{turn}")  # the other engine has less to do then
        for number, messages in enumerate(told):
            messages.append(Said("assistant", (say(f"{number}-{turn}", messages),)))
            messages.append(Said("user", ("Why?",)))
    described = worker.describe()
    assert described["implicit_continued"] == 8
    assert all(engine["implicit_sessions"] > 0 for engine in described["engines"])


def test_a_text_stays_on_its_engine_after_a_long_reply(worker: Worker) -> None:
    """Although it is four times as long then, and the other engine has less to do."""

    def say(name: str, text: str) -> str:
        raw = RawPrompt(session_id=name, prompt=text, max_new_tokens=200, ignore_eos=True)
        affinity = affinity_of(raw, None)
        fields = {"creates_session": True, "ephemeral": True, "affinity": affinity}
        return text + str(worker.ask(raw, **fields)["text"])

    told = [say(f"{number}-1", 4 * f"{number} is the number. ") for number in range(4)]
    assert min(map(len, told)) >= 256
    for number, text in enumerate(told):
        opened(worker, f"s{number}")
        say(f"{number}-2", text + " Why?")
    assert worker.describe()["implicit_continued"] == 4


def test_texts_with_the_same_beginning_use_all_engines(worker: Worker) -> None:
    """As the questions of an evaluation do, after the same examples. One after the other, they stay where the beginning is."""

    def submit(number: int) -> str:
        text = 30 * "All of it. " + 4 * f"{number} is the number. "
        raw = RawPrompt(session_id=f"{number}", prompt=text, max_new_tokens=200, ignore_eos=True)
        affinity = affinity_of(raw, None)
        return worker.submit(raw, creates_session=True, ephemeral=True, affinity=affinity)

    def kept() -> list[int]:
        return sorted(engine["implicit_sessions"] for engine in worker.describe()["engines"])

    for number in (1, 2):
        worker.wait(submit(number))
    assert kept() == [0, 2]
    for request in [submit(number) for number in range(3, 7)]:
        worker.wait(request)
    assert kept()[0] > 0


def test_several_replies_are_made_on_one_engine(worker: Worker) -> None:
    """Of two; the answer has all, and the dispatcher keeps nothing of them."""
    chat = Chat(
        session_id="a",
        messages=(Said("user", ("Who are you?",)),),
        max_new_tokens=3,
        ignore_eos=True,
        temperature=1.0,
        seed=4,
    )
    request = worker.submit(chat, creates_session=True, ephemeral=True, choices=4)
    last = worker.wait(request)
    assert last["usage"]["completion_tokens"] == 3
    choices = [event for event in worker.events[request] if event.kind is EventKind.CHOICE]
    assert len(choices) == 3
    eventually(lambda: sum(s.tokens_generated for s in worker.dispatcher.stats_by_engine) == 12)
    generated = [stats.tokens_generated for stats in worker.dispatcher.stats_by_engine]
    assert sorted(generated) == [0, 12]
    assert not worker.dispatcher._choices._groups


def test_the_shares_add_up(start: Start) -> None:
    """`maxNumSequence` limits the sessions of all engines together; no engine starts without room for one."""
    worker = start(engines=2, max_sessions=3)
    opened(worker, "a", "b", "c")
    assert refusal(worker.ask(Open(session_id="d"), creates_session=True)) == "too_many_sessions"
    assert len(start(engines=2, max_sessions=1).describe()["engines"]) == 1


def test_limits_and_stats_cover_all_engines(worker: Worker) -> None:
    """Clients get the whole limit, operators the stats of all engines together and of each."""
    opened(worker, "a", "b", "c")
    assert worker.ask(Hello())["limits"]["max_sessions"] == 8

    def described() -> dict[str, Any]:
        description = worker.describe()
        return {
            **description,
            "engines": sorted(e["sessions_open"] for e in description["engines"]),
        }

    eventually(lambda: described()["sessions_open"] == 3)
    assert described()["engines"] == [1, 2]
    assert described()["sessions_max"] == 8
    assert len({engine["pid"] for engine in worker.describe()["engines"]}) == 2


def test_the_death_of_an_engine_does_not_affect_the_other(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """While one engine cannot restart, the other serves its sessions and new ones, and the next worker finds it."""
    model_dir = shutil.copytree(model_dir, tmp_path / "archive")

    def started() -> Worker:
        return start(engines=2, restartDeadlineSec=1, model_dir=model_dir)

    worker = started()
    opened(worker, "a", "b")
    (model_dir / "model").rename(model_dir / "gone")
    worker.kill(signal.SIGKILL)
    eventually(lambda: [e["up"] for e in worker.describe()["engines"]] == [False, True])
    prompt = Prompt(session_id="b", prompt="Hi", max_new_tokens=1)
    assert worker.ask(prompt)["turn"] == 1
    opened(worker, "c", "d", "e")
    assert refusal(worker.ask(Open(session_id="f"), creates_session=True)) == "too_many_sessions"
    assert refusal(worker.ask(Info(session_id="a"))) == "engine_unavailable"
    worker.dispatcher.close()
    worker = started()
    assert worker.ask(prompt)["turn"] == 2
    (model_dir / "gone").rename(model_dir / "model")
    eventually(lambda: all(engine["up"] for engine in worker.describe()["engines"]))
    opened(worker, "f", "g", "h")
    assert worker.ask(Info(session_id="a"))["turns"] == 0
    assert refusal(worker.ask(Open(session_id="i"), creates_session=True)) == "too_many_sessions"


def test_a_model_that_is_registered_again_finds_its_engine(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """The same archive in another folder loads no second time. Another archive gets another engine."""
    pids = []
    for number, packed in enumerate(("noon", "noon", "one o'clock")):
        folder = shutil.copytree(model_dir, tmp_path / f"{number:032x}")
        (folder / "MAR-INF").mkdir()
        (folder / "MAR-INF" / "MANIFEST.json").write_text(packed)
        worker = start(model_dir=folder)
        pids.append(worker.engine_pid())
        if number == 0:
            opened(worker, "a")
        if number == 1:
            assert worker.ask(Info(session_id="a"))["turns"] == 0
            shutil.rmtree(tmp_path / f"{0:032x}")
            worker.kill(signal.SIGKILL)
            assert worker.ask(Info(session_id="a"))["turns"] == 0
        worker.dispatcher.close()
    assert pids[0] == pids[1] != pids[2]


def test_a_fork_is_on_the_engine_of_its_source(worker: Worker, start: Start) -> None:
    """The next worker finds it there, too; an id that another engine has used is refused."""
    for name in ("a", "b"):  # one on each
        opened(worker, name)
        worker.ask(Prompt(session_id=name, prompt="Hi", max_new_tokens=1))
    for source in ("a", "b"):
        fork = Fork(session_id=source, new_session_id=f"{source}2")
        assert worker.ask(fork, creates_session=True)["turn"] == 1
        assert refusal(worker.ask(fork, creates_session=True)) == "session_exists"
        again = Prompt(session_id=f"{source}2", prompt="Hi", max_new_tokens=1)
        assert worker.ask(again)["turn"] == 2
    for source in ("a", "nobody"):
        with pytest.raises(SessionExists):
            worker.submit(Fork(session_id=source, new_session_id="b"), creates_session=True)
    assert worker.ask(Info(session_id="b"))["turns"] == 1
    worker.dispatcher.close()
    successor = start(engines=2)
    for name in ("a", "a2", "b", "b2"):
        assert successor.ask(Info(session_id=name))["session_id"] == name


def test_stats_count_requests_in_flight(worker: Worker) -> None:
    """A request counts until the end of its turn. A pulled turn ends after its answer."""
    opened(worker, "s")
    turn = Prompt(session_id="s", prompt="Hi", stream=True, max_new_tokens=900, ignore_eos=True)
    request = worker.submit(turn, pull=True)
    assert worker.describe()["requests_in_flight"] == 1
    assert worker.wait(request)["more"] is True
    assert worker.describe()["requests_in_flight"] == 1
    worker.ask(Close(session_id="s"))
    eventually(lambda: worker.describe()["requests_in_flight"] == 0)


class Departing(Dispatcher):
    """A dispatcher whose client disconnects at the moment at which its request goes to another engine."""

    def on_full(self, *args: Any) -> None:
        """Drop the request, and handle the full engine."""
        self.drop("r")
        super().on_full(*args)


class Unread:
    """A receiver that ignores events."""

    def post(self, event: Event) -> None:
        """Ignore an event."""


def test_a_request_whose_client_leaves_between_two_engines_is_dropped(runtime: Path) -> None:
    """The next engine would run it for nobody."""
    document = {"maxNumSequence": 2, "handler": {"model": "model", "engines": 2}}
    model = ServedModel(load_config(document), document, "tiny", runtime, os.getpid())
    dispatcher = Departing(model, Unread())
    dispatcher.submit(Submit("r", Open(session_id="s"), creates_session=True))
    (full,) = [link for link in dispatcher.links if len(link.in_flight)]
    full.on_message(None, Event("r", EventKind.LAST, status=429))  # type: ignore[arg-type]
    assert [len(link.in_flight) for link in dispatcher.links] == [0, 0]
    dispatcher.close()


class Rounds(threading.Event):
    """The end of a watch after three rounds without a pause."""

    left = 3

    def wait(self, timeout: float | None = None) -> bool:
        """Count a round."""
        self.left -= 1
        return self.left < 0


class Full:
    """A publisher to a full disk."""

    def publish(self, stats: Stats) -> None:
        """Fail."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_engines_are_watched_whatever_fails_beside_them(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher, or the watch of another engine. Each is logged once until it works again."""
    document = {"maxNumSequence": 2, "handler": {"model": "model", "engines": 2}}
    model = ServedModel(load_config(document), document, "tiny", runtime, os.getpid())
    dispatcher = Dispatcher(model, Unread(), (Full(),))
    watched: list[bool] = []
    monkeypatch.setattr(dispatcher.links[0], "watch", lambda: Full().publish(Stats()))
    monkeypatch.setattr(dispatcher.links[1], "watch", lambda: watched.append(True))
    dispatcher._stop = Rounds()
    dispatcher._watch()
    assert len(watched) == 3
    assert len(caplog.records) == 2
    dispatcher.close()
