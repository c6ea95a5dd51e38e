"""Real engine processes whose model is split over two of them: exact, and dead together."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise, png_base64
from tests.support.sounds import media_of, wav_base64
from tests.support.tiny import MORE_MODELS, llama, llava, qwen2_vl, save
from tests.support.tiny.hearing import voxtral
from tests.support.tiny.omni import qwen3_omni
from tests.support.worker import Worker, eventually
from ts_stateful.language.network.load import Model
from ts_stateful.process.names import FOLLOWER, name_of
from ts_stateful.process.worker.fork_server import has_ended
from ts_stateful.process.worker.supervisor import EngineDied
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import (
    Audio,
    Cancel,
    Fork,
    Image,
    Info,
    Open,
    Prompt,
    Request,
    Rewind,
)
from ts_stateful.protocol.response_format import Regex
from ts_stateful.protocol.stats import Stats

Start = Callable[..., Worker]
NEW_TOKENS = 12
ANSWER: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
LONG: dict[str, Any] = {"max_new_tokens": 250, "ignore_eos": True}


class Beside:
    """A split engine and an unsplit one in this process that get the same requests."""

    def __init__(self, worker: Worker, model: Model) -> None:
        self.worker = worker
        self.harness = Harness(model)
        self.media = media_of(model)

    @property
    def stats(self) -> Stats:
        """Those of the split engine."""
        return self.worker.dispatcher.stats_by_engine[0]

    def open(self, name: str) -> None:
        """Open a session, on pictures or clips if the model takes them."""
        sounds = [medium for medium in self.media if isinstance(medium, np.ndarray)]
        pictures = [medium for medium in self.media if not isinstance(medium, np.ndarray)]
        request = Open(
            session_id=name,
            images=tuple(Image(base64=png_base64(picture)) for picture in pictures),
            audio=tuple(Audio(base64=wav_base64(clip)) for clip in sounds),
        )
        opened = self.worker.ask(request, creates_session=True)
        expected = self.harness.open(name, self.media)
        assert opened.get("usage") == expected["usage"], opened

    def say(self, name: str, text: str) -> None:
        """Ask; both replies are that of stock `generate`."""
        prompt = Prompt(session_id=name, prompt=text, **ANSWER)
        found, expected = self.worker.ask(prompt), self.harness.ask(prompt)
        reference_reply(self.harness.model, self.harness, name, NEW_TOKENS)
        assert found["text"] == expected["text"]

    def both(self, request: Request, **fields: Any) -> None:
        """Send a request to both."""
        assert "error" not in self.worker.ask(request, **fields)
        self.harness.ask(request, **fields)


def ranks(worker: Worker) -> list[psutil.Process]:
    """Return the followers of the first engine."""
    children = psutil.Process(worker.engine_pid()).children()
    return [child for child in children if name_of(child.pid).startswith(FOLLOWER)]


@pytest.mark.parametrize(
    "make",
    [llama, llava, qwen2_vl, voxtral, qwen3_omni],
    ids=lambda make: str(make.__name__),
)
def test_a_split_model_answers_as_stock_code(
    make: Callable[[], Model], start: Start, tmp_path: Path
) -> None:
    """Over turns, a fork, a rewind and a cancelled reply."""
    model = make()
    save(model, tmp_path / "model")
    both = Beside(start(model_dir=tmp_path, tensorParallel=2), model)
    both.open("s")
    both.say("s", "What color is the circle?")
    both.both(Fork(session_id="s", new_session_id="fork"), creates_session=True)
    both.say("s", "And the square?")
    both.say("fork", "Tell me a story, äöü 🙂, please.")
    cancelled = both.worker.submit(
        Prompt(session_id="s", prompt="And the square?", stream=True, **LONG)
    )
    both.worker.wait(cancelled, EventKind.PART)
    both.worker.ask(Cancel(session_id="s"))
    both.worker.wait(cancelled)
    both.worker.ask(Rewind(session_id="s", to_turn=1))
    both.both(Rewind(session_id="s", to_turn=1))
    both.say("s", "Tell me a story, äöü 🙂, please.")


def test_a_split_model_computes_what_prompts_have_at_once_one_time(
    start: Start, tmp_path: Path
) -> None:
    """All ranks copy their parts."""
    save(model := llama(), tmp_path / "model")
    both, text = Beside(start(model_dir=tmp_path, tensorParallel=2), model), "A small circle. " * 9
    asked = [Prompt(session_id=f"s{at}", prompt=f"{text}{at}?", **LONG) for at in range(3)]
    sent = [both.worker.submit(one, creates_session=True) for one in asked]
    for one, request in zip(asked, sent, strict=True):
        expected, found = both.harness.ask(one, creates_session=True), both.worker.wait(request)
        reference_reply(model, both.harness, str(one.session_id), one.max_new_tokens)
        assert found["text"] == expected["text"]
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > len(text) / 3


def test_a_split_model_forgets_and_guesses(start: Start, tmp_path: Path) -> None:
    """Sessions that evict one another, and drafts of a reply that repeats itself, change no reply."""
    model = llama()
    save(model, tmp_path / "model")
    both = Beside(start(model_dir=tmp_path, tensorParallel=2, deviceCacheBytes=60_000), model)
    names = [f"s{number}" for number in range(4)]
    for name in names:
        both.open(name)
    for text in ("What color is the circle?", "And the square?"):
        for name in names:
            both.say(name, f"{text} {name}")
    repeated = Prompt(
        session_id="s0",
        prompt="Go",
        max_new_tokens=60,
        response_format=Regex(pattern="([a-z ]{3}, ){30}"),
    )
    assert both.worker.ask(repeated)["text"] == both.harness.ask(repeated)["text"]
    both.say("s0", "And the square?")
    eventually(lambda: both.stats.tokens_drafted > both.stats.tokens_accepted > 0)
    assert both.stats.evictions


def text_of(worker: Worker, request: str) -> str:
    """Return the whole text of a streamed request."""
    last = worker.wait(request)
    parts = [json.loads(e.body)["text"] for e in worker.events[request] if e.kind is EventKind.PART]
    return "".join(parts) + str(last.get("text", last))


@pytest.mark.parametrize("is_driver", [False, True], ids=["follower", "driver"])
def test_a_killed_rank_is_the_end_of_all(start: Start, is_driver: bool) -> None:
    """The next engine finishes the reply as if nothing had happened."""
    worker = start(tensorParallel=2)
    worker.ask(Open(session_id="calm"), creates_session=True)
    worker.ask(Open(session_id="rough"), creates_session=True)
    prompt = {"prompt": "Go", "stream": True, **LONG}
    whole = text_of(worker, worker.submit(Prompt(session_id="calm", **prompt)))
    request = worker.submit(Prompt(session_id="rough", **prompt))
    worker.wait(request, EventKind.PART)
    driver, (follower,) = worker.engine_pid(), ranks(worker)
    (psutil.Process(driver) if is_driver else follower).send_signal(signal.SIGKILL)
    eventually(lambda: has_ended(driver) and has_ended(follower.pid))
    assert text_of(worker, request) == whole
    assert worker.ask(Info(session_id="rough"))["turns"] == 1
    assert worker.engine_pid() != driver


def test_a_session_of_one_device_goes_on_on_two(start: Start, tmp_path: Path) -> None:
    """The records of both are the same, so an operator can change `tensorParallel` between two starts."""
    store = {"url": (tmp_path / "store").as_uri()}
    worker = start(store=store)
    images = (Image(base64=png_base64(noise(1))),)
    worker.ask(Open(session_id="s", images=images), creates_session=True)
    first = worker.ask(Prompt(session_id="s", prompt="Go", **ANSWER))
    pid = worker.kill(signal.SIGTERM)
    worker.dispatcher.close()
    eventually(lambda: has_ended(pid))
    split = start(store=store, tensorParallel=2)
    again = split.ask(Prompt(session_id="s", prompt="Go", turn=1, **ANSWER), is_retry=True)
    assert again["text"] == first["text"]
    assert split.ask(Prompt(session_id="s", prompt="On", **ANSWER))["turn"] == 2


@pytest.mark.parametrize(
    ("make", "count", "reason"),
    [
        (llama, 3, "4 heads cannot be divided by 3"),
        (MORE_MODELS["gemma3n"], 2, "the split model gives other logits than the whole one"),
    ],
    ids=["heads", "logits"],
)
def test_a_model_that_would_not_be_exact_is_refused(
    make: Callable[[], Model], count: int, reason: str, start: Start, tmp_path: Path
) -> None:
    """By its heads, or because the plan of the library does not fit its code."""
    save(make(), tmp_path / "model")
    with pytest.raises(EngineDied, match=rf"handler\.tensorParallel: .*{reason}"):
        start(model_dir=tmp_path, tensorParallel=count)
