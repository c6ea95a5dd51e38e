"""An engine under test, driven by hand: no threads, no sockets, a clock that stands still until it is moved."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Literal

import numpy as np
import torch
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from tests.support.clock import FakeClock
from tests.support.decoding import PlainDecoder
from tests.support.pictures import png
from tests.support.sounds import Medium, wav
from ts_stateful.config.schema import Config, load_config
from ts_stateful.engine.services import Services, WorkQueue
from ts_stateful.language.conversation.turn import Sequence as LiveTurn
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.loader import ReadImage
from ts_stateful.language.engine import LanguageKind, build_engine
from ts_stateful.language.network.load import Model
from ts_stateful.media.load import MediaFile, named
from ts_stateful.protocol.chat import AnyRequest
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Audio, Close, Image, Media, Open, Prompt
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import Store
from ts_stateful.store.ordered_calls import StoreCalls

CONFIG: dict[str, Any] = {
    "continuousBatching": True,
    "batchSize": 8,
    "maxNumSequence": 8,
    "maxSequenceJobQueueSize": 2,
    "sequenceMaxIdleMSec": 60_000,
    "sequenceTimeoutMSec": 600_000,
    "handler": {"reattachSec": 10.0, "prefillChunk": 7, "streamIntervalSec": 0},
}


class LaterExecutor(Executor):
    """Runs what is submitted when it is told to, on the caller's thread."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], Any]] = []
        self.is_out_of_threads = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_out_of_threads:
            raise RuntimeError("can't start new thread")
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # as an executor does
                future.set_exception(error)

        self.jobs.append(run)
        return future

    def run(self) -> None:
        """Runs everything that was submitted."""
        while self.jobs:
            self.jobs.pop(0)()


class Harness:
    """Submits requests to an engine and collects its events by request."""

    def __init__(
        self,
        model: Model,
        config: Config | dict[str, Any] | None = None,
        *,
        store: Store | None = None,
        policy: Literal["required", "best_effort"] = "required",
        content: Literal["all", "text", "none"] = "all",
        first_id: int = 1,
    ) -> None:
        if not isinstance(config, Config):
            overrides = config or {}
            handler = {**CONFIG["handler"], **overrides.pop("handler", {})}
            handler["store"] = {"content": content, **handler.get("store", {})}
            config = load_config({**CONFIG, **overrides, "handler": handler})
        self.model = model
        self.clock = FakeClock()
        self.executor = LaterExecutor()
        self.media: dict[str, Medium] = {}
        self.events: dict[str, list[Event]] = {}
        self.refuse_image: StatefulError | None = None
        self.clients: list[Hashable] = []  # those whose images were loaded
        self._queue = WorkQueue()
        self._ids = itertools.count(first_id)
        access = StoreAccess(store, policy, self.executor) if store else None
        calls = StoreCalls(access, self._queue, self.clock) if access else None
        self.engine = build_engine(
            model,
            config,
            Services(self, self._queue, self.clock, calls),
            self,
            executor=self.executor,
        )
        assert isinstance(self.engine.kind, LanguageKind)
        self.kind = self.engine.kind

    def emit(self, event: Event) -> None:
        """Keep an event."""
        self.events.setdefault(event.request_id, []).append(event)

    def load(
        self,
        images: Sequence[Media],
        files: Sequence[bytes],
        read: ReadImage,
        client: Hashable,
    ) -> Future[list[MediaInput]]:
        loaded: Future[list[MediaInput]] = Future()

        def run() -> None:
            try:
                loaded.set_result(self.read_all(images, files, read))
            except Exception as error:  # as a future does
                loaded.set_exception(error)

        self.clients.append(client)
        self.executor.submit(run)
        return loaded

    def read_all(
        self, images: Sequence[Media], files: Sequence[bytes], read: ReadImage
    ) -> list[MediaInput]:
        """Read what was asked for; on the thread that has the job."""
        if self.refuse_image is not None:
            raise self.refuse_image
        return [read(self._file(field, image)) for field, image in named(images)]

    def _file(self, field: str, image: Media) -> MediaFile:
        medium = self.media[image.url or ""]
        data = wav(medium) if isinstance(medium, np.ndarray) else png(medium)
        return MediaFile(data, PlainDecoder(), field)

    def submit(self, command: AnyRequest, request_id: str = "", **fields: Any) -> str:
        """Submits a request; returns its id."""
        request_id = request_id or f"r{next(self._ids)}"
        self.engine.submit(Submit(request_id, command, **fields))
        return request_id

    @property
    def num_jobs(self) -> int:
        """What other threads have to do."""
        return len(self.executor.jobs)

    def work(self, index: int) -> None:
        """Another thread does one of its jobs."""
        self.executor.jobs.pop(index)()

    def hear(self) -> None:
        """The engine's thread hears what another one has done, if there is something."""
        self._queue.run_next()
        self.engine.settle()

    def pump(self) -> None:
        """Runs what other threads would have done, without a step."""
        while self.executor.jobs or self._queue.run_next():
            self.engine.settle()
            self.executor.run()

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(max_steps):
            self.pump()
            if not self.engine.busy:
                break
            self.engine.step()
        self.pump()
        self.engine.check_integrity()

    def steps(self, count: int) -> None:
        """Runs so many steps."""
        for _ in range(count):
            self.pump()
            self.engine.step()
            self.engine.check_integrity()

    def turn_of(self, request_id: str) -> LiveTurn | None:
        """The turn that a request began, until it is done."""
        work: Iterable[LiveTurn] = (turn for session in self.engine.table for turn in session.work)
        return next((turn for turn in work if turn.origin == request_id), None)

    def last(self, request_id: str) -> dict[str, Any]:
        """The terminal document of a request, which must have exactly one."""
        ends = [e for e in self.events.get(request_id, []) if e.kind is EventKind.LAST]
        assert len(ends) == 1, (request_id, self.events.get(request_id))
        document: dict[str, Any] = json.loads(ends[0].body)
        return document

    def documents(self, request_id: str) -> list[dict[str, Any]]:
        """The streamed documents, and the last one."""
        return [json.loads(e.body) for e in self.events.get(request_id, []) if e.body]

    def parts(self, request_id: str) -> list[str]:
        """The streamed pieces of text before the last one."""
        events = self.events.get(request_id, [])
        return [json.loads(e.body)["text"] for e in events if e.kind is EventKind.PART]

    def ask(self, command: AnyRequest, **fields: Any) -> dict[str, Any]:
        """Submits, runs to the end, and returns the terminal document."""
        request_id = self.submit(command, **fields)
        self.run()
        return self.last(request_id)

    def open(self, session_id: str, media: Iterable[Medium] = (), **fields: Any) -> dict[str, Any]:
        """Opens a session on these pictures or clips."""
        images, audio = list[Image](), list[Audio]()
        for medium in media:
            name = f"picture-{len(self.media)}"
            self.media[name] = medium
            if isinstance(medium, np.ndarray):
                audio.append(Audio(url=name))
            else:
                images.append(Image(url=name))
        command = Open(session_id=session_id, images=tuple(images), audio=tuple(audio), **fields)
        return self.ask(command, creates_session=True)

    def prompt(self, session_id: str, text: str, **fields: Any) -> dict[str, Any]:
        """One turn."""
        return self.ask(Prompt(session_id=session_id, prompt=text, **fields))

    def close(self, session_id: str) -> dict[str, Any]:
        """Ends a session."""
        return self.ask(Close(session_id=session_id))


def stock_reply(
    model: Model, prompt: Sequence[int], max_new_tokens: int, **inputs: Any
) -> list[int]:
    """The ids that stock `generate` puts behind a prompt, with the attention that the library chooses."""
    config = model.network.config.get_text_config(decoder=True)
    ours, config._attn_implementation = config._attn_implementation, model.forward.stock_attention
    if model.forward.layout.per_prompt:  # its processor marks all of a prompt so
        inputs["token_type_ids"] = torch.zeros(1, len(prompt), dtype=torch.long)
    try:
        ids: list[int] = model.network.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **inputs,
        )[0, len(prompt) :].tolist()
    finally:
        config._attn_implementation = ours
    return ids


def _seen_tiles(prompt: Sequence[int], mask: torch.Tensor, inputs: Any) -> torch.Tensor:
    """Return which tiles each token of a prompt attends to, as the stock processor has it."""
    tiles = inputs["aspect_ratio_mask"].sum(-1).tolist()
    (token,) = set(torch.tensor([list(prompt)])[mask.bool()].tolist())
    seen = get_cross_attention_token_mask(list(prompt), token)
    most = inputs["aspect_ratio_mask"].shape[-1]
    return torch.from_numpy(
        convert_sparse_cross_attention_mask_to_dense([seen], tiles, most, len(prompt))
    )


def reference_reply(model: Model, harness: Harness, session_id: str, max_new_tokens: int) -> None:
    """Asserts that the last committed turn is what stock `generate` makes of the whole transcript from scratch."""
    session = harness.engine.table.get(session_id)
    log, turn, seen = session.state.log, session.state.turns[-1], len(session.state.images)
    prompt, reply = log[: turn.usage.prompt_tokens], log[turn.usage.prompt_tokens :]
    inputs: dict[str, Any] = {}
    if model.encoder is not None and session.state.images:
        # All media of the conversation at once, as a processor is given them: tiled ones are padded to one another.
        media = list(harness.media.values())[:seen]
        shown = session.state.images
        text = "".join(model.encoder.tower_of(image).token for image in shown)
        made = model.encoder.process(text, media)
        ids = {"input_ids", "attention_mask"}
        inputs = {n: made[n] for n in made if n not in ids and isinstance(made[n], torch.Tensor)}
        inputs |= {n: t.to(model.network.dtype) for n, t in inputs.items() if t.is_floating_point()}
        mask = torch.tensor([list(model.encoder.mask(prompt, session.state.images))])
        inputs |= {name: mask for name in inputs if name.endswith("token_type_ids")}
        if "cross_attention_mask" in inputs:
            inputs["cross_attention_mask"] = _seen_tiles(prompt, mask, inputs)
    generated = stock_reply(model, prompt, max_new_tokens, **inputs)
    while generated and generated[-1] in model.eos_ids:
        generated.pop()
    assert reply == generated
    assert turn.text == model.tokenizer.decode(reply, skip_special_tokens=True)
