"""Registrations that share their engines: two workers, one for each registration."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker import Worker, eventually
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.process.worker.group import Membership, terms_of
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Cancel, Close, Continue, Fork, Hello, Info, Open, Prompt

Start = Callable[..., Worker]
LONG: dict[str, Any] = {"prompt": "Go", "max_new_tokens": 300, "ignore_eos": True}


@pytest.fixture
def pair(start: Start, model_dir: Path, tmp_path: Path) -> Callable[..., tuple[Worker, Worker]]:
    """Start two workers of one group at the same time, each with its own archive."""

    def pair(**settings: Any) -> tuple[Worker, Worker]:
        folders = (model_dir, shutil.copytree(model_dir, tmp_path / "copy"))
        with ThreadPoolExecutor(2) as pool:
            begin = partial(start, engineGroup="g", **settings)
            first, second = pool.map(lambda folder: begin(model_dir=folder), folders)
        return first, second

    return pair


Pair = Callable[..., tuple[Worker, Worker]]


def engines(worker: Worker) -> list[int]:
    """Return the engine processes of a worker."""
    return [engine["pid"] for engine in worker.describe()["engines"]]


def text(worker: Worker, request: str) -> str:
    """Return the whole text of a streamed request."""
    last = worker.wait(request)
    parts = [json.loads(e.body)["text"] for e in worker.events[request] if e.kind is EventKind.PART]
    return "".join(parts) + str(last["text"])


def test_a_session_is_one_conversation_through_both(pair: Pair) -> None:
    """One engine serves its turns, `continue`, `cancel`, `fork` and `close`, from both workers, in any profile."""
    first, second = pair()
    assert engines(first) == engines(second)
    assert first.ask(Hello(), profile=Profile.SEQUENCE)["profile"] == "sequence"
    assert second.ask(Hello(), profile=Profile.CONTINUOUS)["profile"] == "continuous"
    first.ask(Open(session_id="s"), creates_session=True)
    assert first.ask(Prompt(session_id="s", prompt="Hi", max_new_tokens=2))["turn"] == 1
    reply = second.ask(Prompt(session_id="s", prompt="Go on", max_new_tokens=2))
    assert reply["turn"] == 2
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert first.ask(Continue(session_id="s", turn=2))["text"] == reply["text"]
    longer = {**LONG, "max_new_tokens": 900}  # or it might be over before it is cancelled
    running = second.submit(Prompt(session_id="s", stream=True, **longer))
    second.wait(running, EventKind.PART)
    assert first.ask(Cancel(session_id="s"))["cancelled"] is True
    assert second.wait(running)["finish_reason"] == "cancelled"
    assert first.ask(Fork(session_id="s", new_session_id="t"), creates_session=True)["turn"] == 3
    assert second.ask(Prompt(session_id="t", prompt="Hi", max_new_tokens=1))["turn"] == 4
    assert second.ask(Close(session_id="s"))["closed"] is True
    assert first.ask(Info(session_id="s"))["error"]["code"] == "session_closed"


def test_all_workers_send_a_session_to_the_same_engine(pair: Pair) -> None:
    """No other engine takes it over through the other worker, and each session counts once for `maxNumSequence`."""
    first, second = pair(engines=2, max_sessions=16)
    assert engines(first) == engines(second)
    names = [f"s{index}" for index in range(6)]
    for index, name in enumerate(names):
        (first, second)[index % 2].ask(Open(session_id=name), creates_session=True)
    for index, name in enumerate(names):
        other = (second, first)[index % 2]
        assert (
            other.ask(Fork(session_id=name, new_session_id=f"{name}f"), creates_session=True)[
                "turn"
            ]
            == 0
        )
        prompt = Prompt(session_id=name, prompt="Hi", max_new_tokens=1)
        assert [w.ask(prompt)["turn"] for w in (other, first, second)] == [1, 2, 3]
        assert other.ask(Info(session_id=name))["residency"] == "device"
    answers = [
        (first, second)[index % 2].ask(Open(session_id=f"more-{index}"), creates_session=True)
        for index in range(6)
    ]
    assert ["error" in answer for answer in answers] == [False] * 4 + [True] * 2
    assert {answer["error"]["code"] for answer in answers[4:]} == {"too_many_sessions"}
    eventually(lambda: first.describe()["sessions_open"] == 16)


def test_both_workers_survive_the_death_of_the_engine(pair: Pair) -> None:
    """Each resumes its own turns; one engine comes back, whichever worker starts it."""
    first, second = pair()
    workers = {"a": first, "b": second}
    for name, worker in workers.items():
        worker.ask(Open(session_id=name), creates_session=True)
        worker.ask(Open(session_id=f"{name}-calm"), creates_session=True)
    calm = {
        name: text(worker, worker.submit(Prompt(session_id=f"{name}-calm", stream=True, **LONG)))
        for name, worker in workers.items()
    }
    running = {
        name: worker.submit(Prompt(session_id=name, stream=True, **LONG))
        for name, worker in workers.items()
    }
    for name, worker in workers.items():
        worker.wait(running[name], EventKind.PART)
    (before,) = engines(first)
    os.kill(before, signal.SIGKILL)
    assert {name: text(worker, running[name]) for name, worker in workers.items()} == calm
    eventually(lambda: None not in engines(first) and engines(first) == engines(second))
    assert before not in engines(first)
    for other, name in ((second, "a"), (first, "b")):
        assert other.ask(Prompt(session_id=name, prompt="Hi", max_new_tokens=1))["turn"] == 2


def test_an_engine_stays_while_one_of_its_workers_does(pair: Pair, start: Start) -> None:
    """The next worker finds it, too."""
    first, second = pair(engineLingerSec=0.1)
    first.ask(Open(session_id="s"), creates_session=True)
    (pid,) = engines(first)
    first.dispatcher.close()
    assert second.ask(Prompt(session_id="s", prompt="Hi", max_new_tokens=1))["turn"] == 1
    third = start(engineGroup="g", engineLingerSec=0.1)
    assert engines(third) == [pid]
    assert third.ask(Info(session_id="s"))["turns"] == 1


def test_other_terms_are_refused_by_key(pair: Pair, start: Start) -> None:
    """As long as the group has a member."""
    first, second = pair()
    with pytest.raises(ConfigError) as refused:
        start(engineGroup="g", max_sessions=4, prefillChunk=64)
    message = str(refused.value)
    assert "handler.prefillChunk (256 there, 64 here)" in message
    assert "maxNumSequence (8 there, 4 here)" in message
    assert "archive" not in message
    first.dispatcher.close()
    second.dispatcher.close()
    assert start(engineGroup="g", max_sessions=4).ask(Hello())["limits"]["max_sessions"] == 4


def test_the_first_member_sets_the_terms(runtime: Path) -> None:
    """They end with the last member."""
    one = Membership(1, "g", {"a": 1, "b": [2]})
    two = Membership(1, "g", {"a": 1, "b": [2]})
    Membership(1, "another", {"a": 2}).leave()
    Membership(2, "g", {"a": 2}).leave()
    one.leave()
    for terms in ({"a": 1}, {"a": 1, "b": [3]}, {"a": 1, "b": [2], "c": 0}):
        with pytest.raises(ConfigError, match="group g differs in "):
            Membership(1, "g", terms)
    two.leave()
    Membership(1, "g", {"a": 2}).leave()


def test_settings_of_the_frontend_may_differ(tmp_path: Path) -> None:
    """A default may be written or left out."""
    handler = {"engineGroup": "g", "store": {"policy": "required"}}
    pulled = {"continuousBatching": True, "batchSize": 8, "maxNumSequence": 7}
    pushed = {"sequenceBatching": True, "batchSize": 9, "maxNumSequence": 7, "jobQueueSize": 5}
    one, two = (
        terms_of(load_config({**keys, "handler": settings}), tmp_path)
        for keys, settings in ((pulled, handler), (pushed, {"engineGroup": "h"}))
    )
    assert one == two
    assert one["handler.store.policy"] == "required"
