"""On a GPU: replies are exact with kernels and graphs, a step waits once, states go to host memory and come back."""

from __future__ import annotations

import pytest
import torch

from tests.support.harness import Harness
from tests.support.running_ahead import runner_of
from tests.support.tiny import MODELS
from ts_stateful.config.schema import load_config
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.host_copies import HostCopy
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model, accelerate, build_model
from ts_stateful.language.network.sampler import SamplingRow, sample
from ts_stateful.protocol.requests import Prompt

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
QUESTIONS = ("What color is the circle?", "And the square?", "Tell me a story, please.")
NEW_TOKENS = 24


def on_gpu(name: str) -> Model:
    """A model as `load_model` prepares it, in float32."""
    made = MODELS[name]()
    network = made.network.to(DEVICE)
    network.config.get_text_config(decoder=True)._attn_implementation = made.forward.stock_attention
    model = build_model(name, network, made.text._owner)
    accelerate(model, load_config({}).handler)
    return model


def replies(model: Model, *, together: bool) -> list[str]:
    """Of three sessions, side by side or one after the other."""
    harness = Harness(model)
    texts = []
    for name, question in zip("abc", QUESTIONS, strict=True):
        harness.open(name)
        harness.prompt(name, "Hello.", max_new_tokens=3)
        prompt = Prompt(session_id=name, prompt=question, max_new_tokens=NEW_TOKENS)
        texts.append(harness.submit(prompt))
        if together:
            harness.steps(1)
        else:
            harness.run()
    harness.run()
    return [harness.last(request)["text"] for request in texts]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_replies_are_those_of_a_cpu(name: str) -> None:
    """In float32, with kernels and graphs where the model allows them, side by side."""
    expected = replies(MODELS[name](), together=False)
    assert replies(on_gpu(name), together=True) == expected


def test_a_decode_step_waits_for_nothing_but_its_tokens() -> None:
    """Neither the pass nor the choice of tokens stops the host, until it asks for them."""
    model = on_gpu("llama")
    caches = [model.new_kv() for _ in range(3)]
    for kv, length in zip(caches, (5, 70, 9), strict=True):
        model.forward(list(range(length)), [Span(kv, 0, length)], None, [length - 1])
        kv.reserve(length + 8)
    rows = [SamplingRow(), SamplingRow(1.0, 5, 0.9, 1, 1), SamplingRow()]
    logits = model.forward([1, 2, 3], [Span(kv, kv.length, 1) for kv in caches], None, [0, 1, 2])
    sample(logits, rows)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            spans = [Span(kv, kv.length, 1) for kv in caches]
            logits = model.forward([1, 2, 3], spans, None, [0, 1, 2])
            with pytest.raises(RuntimeError, match="synchroniz") as raised:
                sample(logits, rows)
            assert "tolist" in str(raised.traceback[-1].statement)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_steps_are_computed_ahead() -> None:
    """All steps of a reply but its first one, and nothing waits for them before its token has arrived."""
    harness = Harness(on_gpu("llama"))
    harness.open("s")
    harness.prompt("s", "Hello.", max_new_tokens=NEW_TOKENS, ignore_eos=True)
    assert runner_of(harness).num_ahead == NEW_TOKENS - 1


def test_what_is_queued_later_is_not_waited_for() -> None:
    """The chosen tokens are on the host while the next pass is still computed."""
    copy = HostCopy(torch.arange(5, device=DEVICE))
    torch.cuda._sleep(1_000_000_000)
    end = torch.cuda.Event()
    end.record()
    assert copy.values == [0, 1, 2, 3, 4]
    assert not end.query()
    end.synchronize()


def test_states_come_back_from_host_memory_as_they_were() -> None:
    """Pinned, and without waiting in between."""
    layout = KVLayout((LayerShape(2, 16, 8), LayerShape(1, 8, 8)), torch.float32)
    kv = KVCache(layout, DEVICE)
    kv.reserve(1000)
    kv.length = 777
    for part in kv.states:
        part.normal_()
    before = [part[:, :777].clone() for part in kv.states]
    kv.move(torch.device("cpu"))
    assert all(part.is_pinned() for part in kv.states)
    kv.move(DEVICE)
    assert all(torch.equal(a, b[:, :777]) for a, b in zip(before, kv.states, strict=True))
