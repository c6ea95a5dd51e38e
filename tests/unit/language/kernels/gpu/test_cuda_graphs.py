"""A replayed decode step agrees with the launched one; one that cannot be replayed, or is not faster so, is launched."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.plain_capturer import PlainCapturer
from tests.support.table_kernels import TableKernels
from tests.support.tiny import MODELS
from ts_stateful.language.kernels.gpu.cuda_graphs import _no_waiting
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Prompt

SIZES = [1, 2, 4, 8, 16, 32, 64, 128]


def with_kernels(name: str) -> Model:
    model = MODELS[name]()
    assert model.forward.use_kernels(TableKernels(model.forward.layout)) == ""
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "llava", "qwen2_vl"])
def test_replies_are_exact_with_kernels_and_replays(name: str) -> None:
    """Sessions of different lengths side by side, joining and leaving, each get what `generate` gives for them alone."""
    model, capturer = with_kernels(name), PlainCapturer()
    assert model.forward.capture(capturer) == SIZES
    before = capturer.num_replays
    harness = Harness(model)
    names = ["a", "b", "c"]
    for session in names:
        assert "error" not in harness.open(session, [noise(1)] if model.encoder else [])
    requests = []
    for number, session in enumerate(names):
        prompt = Prompt(
            session_id=session, prompt="Go on, " * (number + 1), max_new_tokens=6 + number
        )
        requests.append(harness.submit(prompt))
        harness.pump()
        harness.engine.step()
    harness.run()
    assert all("error" not in harness.last(request) for request in requests)
    assert capturer.num_replays > before + 5
    pictures = dict(harness.media)
    for number, session in enumerate(names):
        harness.media = {f"picture-{number}": pictures[f"picture-{number}"]} if pictures else {}
        reference_reply(model, harness, session, 6 + number)


def decode(forward: Forward, caches: list[KVCache], first_id: int = 5) -> Tensor:
    """Run a step of one token for each session."""
    spans = [Span(kv, kv.length, 1) for kv in caches]
    ids = [first_id + index for index in range(len(spans))]
    return forward(ids, spans, None, list(range(len(spans))))


def prefilled(forward: Forward, *lengths: int) -> list[KVCache]:
    caches = [KVCache(forward.layout, torch.device("cpu")) for _ in lengths]
    for kv, length in zip(caches, lengths, strict=True):
        forward(list(range(7, 7 + length)), [Span(kv, 0, length)], None, [length - 1])
    return caches


@pytest.mark.parametrize("num_rows", [1, 3, 4, 5])
def test_any_number_of_rows_is_replayed(num_rows: int) -> None:
    """Padding rows change nothing, and states that have moved in between are found."""
    forward, stock = with_kernels("llama").forward, MODELS["llama"]().forward
    capturer = PlainCapturer()
    forward.capture(capturer)
    lengths = [3, 70, 2, 20, 9][:num_rows]
    caches, expected_caches = prefilled(forward, *lengths), prefilled(stock, *lengths)
    before = capturer.num_replays
    for number in range(3):
        found = decode(forward, caches, 5 + number)
        expected = decode(stock, expected_caches, 5 + number)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        caches[0].reserve(2 * caches[0].capacity)
    assert capturer.num_replays == before + 3


def test_logits_are_the_callers() -> None:
    """The next replay does not overwrite earlier logits."""
    forward = with_kernels("llama").forward
    forward.capture(PlainCapturer())
    caches = prefilled(forward, 3, 5)
    first = decode(forward, caches)
    kept = first.clone()
    assert not torch.equal(decode(forward, caches, 50), kept)
    assert torch.equal(first, kept)


def test_only_what_was_asked_for_is_kept() -> None:
    """A replayed step, too, can return the logits of some rows alone."""
    forward = with_kernels("llama").forward
    forward.capture(PlainCapturer())
    caches = prefilled(forward, 3, 5, 7)
    spans = [Span(kv, kv.length, 1) for kv in caches]
    everything = forward([5, 6, 7], spans, None, [0, 1, 2])
    assert torch.equal(forward([5, 6, 7], spans, None, [2]), everything[2:])


def test_more_rows_than_any_graph_has_are_launched() -> None:
    """A step that is too wide is computed by launches."""
    forward = with_kernels("llama").forward
    capturer = PlainCapturer()
    forward.capture(capturer)
    before = capturer.num_replays
    caches = [KVCache(forward.layout, torch.device("cpu")) for _ in range(SIZES[-1] + 1)]
    assert decode(forward, caches, 0).shape[0] == len(caches)
    assert capturer.num_replays == before


class _Stale(PlainCapturer):
    """A capturer with a defect: the graph has its inputs baked in."""

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        output = work().clone()
        return lambda: output


class _Refusing(PlainCapturer):
    """A capturer that cannot record this work."""

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("called a synchronizing CUDA operation")


class _Full(PlainCapturer):
    """A capturer with memory for a few graphs."""

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if work().shape[0] > 4:
            raise torch.OutOfMemoryError
        return super().capture(work)


@pytest.mark.parametrize(
    ("capturer", "reason"),
    [(_Stale(), "a replay's logits differ"), (_Refusing(), "a synchronizing CUDA operation")],
)
def test_what_cannot_be_replayed_is_launched(
    capturer: PlainCapturer, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No graph is used, and the log has the reason."""
    forward = with_kernels("llama").forward
    assert forward.capture(capturer) == []
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert reason in record.getMessage()
    assert decode(forward, prefilled(forward, 4)).shape[0] == 1


def test_a_warning_of_the_search_for_what_waits_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch warns at the first use, after which the mode must be restored."""
    modes: list[object] = ["default"]

    def set_mode(mode: object) -> None:
        modes.append(mode)
        if mode == "error":
            warnings.warn("a prototype", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with _no_waiting():
        modes.append("work")
    assert modes == ["default", "error", "work", "default"]


def test_graphs_that_gain_nothing_are_not_used() -> None:
    """Steps are launched if replaying takes longer."""
    assert with_kernels("llama").forward.capture(PlainCapturer(replay_ms=3.0, work_ms=2.0)) == []


def test_graphs_for_which_there_is_no_memory_are_left_out() -> None:
    """The smaller ones are used."""
    assert with_kernels("llama").forward.capture(_Full()) == [1, 2, 4]


class _Wrong(TableKernels):
    def attend(self, query: Tensor, *args: Any) -> Tensor:
        return 0.5 * super().attend(query, *args)


class _Broken(TableKernels):
    def attend(self, query: Tensor, *args: Any) -> Tensor:
        raise RuntimeError("out of resource: shared memory")


@pytest.mark.parametrize(
    ("kernels", "reason"), [(_Wrong, "logits differ"), (_Broken, "out of resource")]
)
def test_a_model_that_differs_with_kernels_goes_without(
    kernels: type[TableKernels], reason: str
) -> None:
    """The result is the reason, and torch's operators compute as before."""
    forward, stock = MODELS["llama"]().forward, MODELS["llama"]().forward
    assert reason in forward.use_kernels(kernels(forward.layout))
    caches = prefilled(forward, 4, 9), prefilled(stock, 4, 9)
    assert torch.equal(decode(forward, caches[0]), decode(stock, caches[1]))
