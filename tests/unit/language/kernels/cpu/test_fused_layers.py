"""Decoder layers that are computed in one call compute what the stock ones compute."""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.harness import Harness, reference_reply
from tests.support.kernels import language_kernels
from tests.support.pictures import noise
from tests.support.tiny import MODELS, MORE_MODELS, llama, save
from tests.support.tiny.like_llama import FAR
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.cpu_kernels.build import is_worthwhile
from ts_stateful.language.kernels.choosers import all_chosen
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers, find_fused
from ts_stateful.language.kernels.cpu.kept_experts import keep_experts
from ts_stateful.language.kernels.decoder_layout import find_decoder
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.network.load import Model, accelerate, load_model
from ts_stateful.language.network.model_support import verified_forward
from ts_stateful.language.network.penalties import Penalties
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.response_format import JsonObject

BUILDERS = {**MODELS, **MORE_MODELS}
TEXT = (
    *("ernie4_5", "exaone4", "gemma", "gemma2", "gemma3", "glm", "glm4", "gpt_oss", "granite"),
    *("granite_moe", "llama", "ministral"),
    *("ministral3", "mistral", "mixtral", "olmo2", "olmo3", "olmoe", "phi3", "qwen2", "qwen3"),
    *("qwen3_moe", "seed_oss", "smollm3"),
)
SEEING = (
    *("gemma3_vision", "glm4v", "idefics3", "llava", "qwen2_5_omni", "qwen2_5_vl", "qwen2_vl"),
    *("qwen3_omni", "qwen3_vl", "qwen3_vl_moe"),
)
READ_BY_NETWORK = {"gemma3_vision"}
# Threads share outputs, rows, heads and experts, so a model of each kind shows what several of them do.
BY_THREADS = ("gemma2", "gpt_oss", "llama", "mixtral", "qwen2_vl")
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
needs_vectors = pytest.mark.skipif(
    not is_worthwhile(torch.device("cpu"), torch.float32), reason="not used on this processor"
)


def build(name: str) -> Model:
    """Build a small model whose norms and biases are random too; stock ones are all one, or zero."""
    model = BUILDERS[name]()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.network.get_decoder().parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def fused_of(forward: Forward) -> FusedLayers:
    library = language_kernels()
    keep_experts(forward.network, library, {})
    return FusedLayers(find_decoder(forward.network), forward.layout, forward.windows, library)


def in_threads(*names: str) -> pytest.MarkDecorator:
    """Run a test for each model on one thread, and for some on several."""
    cases = [*((name, 1) for name in names), *((name, 3) for name in BY_THREADS)]
    return pytest.mark.parametrize(("name", "threads"), cases, indirect=["threads"])


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set torch's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def sessions(model: Model, count: int) -> list[KVCache]:
    """Return sessions of 1 to 60 tokens, which is beyond the windows of the models that have one."""
    caches = []
    for index in range(count):
        kv, length = model.new_kv(), 1 + 23 * index % 60
        ids = [3 + (index + 5 * i) % 200 for i in range(length)]
        model.forward(ids, [Span(kv, 0, length)], None, [length - 1])
        caches.append(kv)
    return caches


def rows_of(model: Model, caches: list[KVCache], token: int) -> Rows:
    for kv in caches:
        kv.reserve(kv.length + 1)
    spans = [Span(kv, kv.length, 1) for kv in caches]
    ids = [token + index for index in range(len(caches))]
    return Rows(ids, model.forward.text_positions(spans), spans)


@torch.inference_mode()
@in_threads(*TEXT, *SEEING)
def test_logits_and_states_are_those_of_the_stock_layers(name: str, threads: int) -> None:
    """For any number of sessions of different lengths, step after step."""
    model = build(name)
    fused = fused_of(model.forward)
    for count in (1, 2, 3, 5, 7, 16, 33) if threads == 1 else (1, 7):
        stock = sessions(model, count)
        own = [kv.copy(kv.length) for kv in stock]
        for token in (20, 60, 90):
            rows = rows_of(model, stock, token)
            expected = model.forward(rows.ids, rows.spans, rows.positions, list(range(count)))
            found = fused(rows_of(model, own, token))
            for kv in own:
                kv.length += 1
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        for one, other in zip(stock, own, strict=True):
            for part, counterpart in zip(one.states, other.states, strict=True):
                torch.testing.assert_close(
                    counterpart[:, : other.length], part[:, : one.length], rtol=1e-4, atol=1e-4
                )


@torch.inference_mode()
@in_threads(*TEXT, *SEEING)
def test_short_prompts_are_those_of_the_stock_layers(name: str, threads: int) -> None:
    """Several tokens of some sessions beside single ones of others; only wanted logits are computed."""
    model = build(name)
    fused = fused_of(model.forward)
    stock = sessions(model, 4)
    own = [kv.copy(kv.length) for kv in stock]
    keep = [6, 7, 12]
    for counts in ((7, 1, 5, 1), (1, 9, 1, 4)):
        logits = []
        for caches in (stock, own):
            spans = [Span(kv, kv.length, n) for kv, n in zip(caches, counts, strict=True)]
            for span in spans:
                span.kv.reserve(span.stop)
            ids = [5 + 3 * index % 200 for index in range(sum(counts))]
            if caches is stock:
                logits.append(model.forward(ids, spans, None, keep))
                continue
            found = fused(Rows(ids, model.forward.text_positions(spans), spans, keep))
            assert found is not None
            logits.append(found)
            for span in spans:
                span.kv.length = span.stop
        torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    for one, other in zip(stock, own, strict=True):
        for part, counterpart in zip(one.states, other.states, strict=True):
            torch.testing.assert_close(
                counterpart[:, : other.length], part[:, : one.length], rtol=1e-4, atol=1e-4
            )


@torch.inference_mode()
@in_threads(*sorted({*TEXT, *SEEING} - {"qwen3_moe"}))  # 48 inputs
def test_bfloat16_is_as_near_to_float32_as_stock_code(name: str, threads: int) -> None:
    """Weights, states and what is multiplied are rounded; stock code also rounds what it adds up."""
    model = build(name)
    network = model.network.bfloat16()
    network.set_attn_implementation(model.forward.stock_attention)  # as it is loaded
    exact, stock = (
        verified_forward(other, name, quantised=False)
        for other in (copy.deepcopy(network).float(), network)
    )
    fused = fused_of(stock)
    caches = [[forward.new_kv() for _ in range(4)] for forward in (exact, stock, stock)]
    found: list[list[Tensor]] = [[], [], []]
    with all_chosen(exact.network), all_chosen(network):  # rounding would exchange some experts
        for counts in ((50, 3, 1, 9), (7, 1, 5, 1), (1, 1, 1, 1), (1, 9, 1, 4)):
            ids = [5 + 3 * index % 200 for index in range(sum(counts))]
            for way, (some, logits) in enumerate(zip(caches, found, strict=True)):
                spans = [Span(kv, kv.length, n) for kv, n in zip(some, counts, strict=True)]
                if way < 2:
                    forward = (exact, stock)[way]
                    logits.append(forward(ids, spans, None, list(range(len(ids)))).float())
                    continue
                for span in spans:
                    span.kv.reserve(span.stop)
                computed = fused(Rows(ids, stock.text_positions(spans), spans))
                assert computed is not None
                logits.append(computed.float())
                for span in spans:
                    span.kv.length = span.stop
    right, theirs, ours = (torch.cat(logits) for logits in found)
    assert (ours - right).norm() < 1.1 * (theirs - right).norm()
    assert (theirs - right).norm() < 0.1 * right.norm()


@torch.inference_mode()
def test_a_long_history_is_shared_out_among_threads(threads: int) -> None:
    """One session alone, whose tokens are read in several parts."""
    model = llama()
    kv = model.new_kv()
    kv.reserve(901)
    generator = torch.Generator().manual_seed(1)
    for part in kv.states:
        part[:, :900].normal_(generator=generator)
    kv.length = 900
    found = fused_of(model.forward)(rows_of(model, [kv.copy(900)], 5))
    expected = model.forward([5], [Span(kv, 900, 1)], None, [0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@needs_vectors
@pytest.mark.parametrize("name", TEXT + SEEING)
def test_replies_are_those_of_stock_code(name: str) -> None:
    """Sessions that decode side by side, while others' prompts are still being read, answer as before."""
    model = build(name)
    accelerate(model, HandlerConfig())
    assert isinstance(model.forward.shortcut, FusedLayers)
    harness = Harness(model)
    for index in range(4):
        pictures = [noise(1 + index)] if model.encoder else []
        assert "error" not in harness.open(f"s{index}", pictures)
    for turn in range(2):
        turns = [
            Prompt(
                session_id=f"s{index}",
                prompt="What is it? " * (1 + 4 * index + turn),
                max_new_tokens=12,
            )
            for index in range(4)
        ]
        submitted = [harness.submit(prompt) for prompt in turns]
        harness.run()
        for request_id in submitted:
            assert "error" not in harness.last(request_id)
        if not model.encoder:
            for index in range(4):
                reference_reply(model, harness, f"s{index}", 12)


@needs_vectors
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_k": 1000},
        {"logprobs": True},
        {"frequency_penalty": 0.5},
        {"logit_bias": {5: 1.0}},
        {"response_format": JsonObject()},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_all_logits_are_computed_where_more_than_a_few_are_of_use(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one such reply, or a model with such settings, those of all rows; greedy and drawn replies alone need few."""
    model = build("llama")
    accelerate(model, HandlerConfig())
    fused, asked = model.forward.shortcut, list[bool]()
    assert isinstance(fused, FusedLayers)
    assert fused._shortlist is not None

    def spy(rows: Rows) -> Tensor | None:
        asked.append(rows.draws is not None)
        return fused(rows)

    monkeypatch.setattr(model.forward, "shortcut", spy)
    harness = Harness(model)
    for session in ("greedy", "other"):
        harness.open(session)
    harness.prompt("greedy", "What is it?", max_new_tokens=5)
    assert all(asked)
    asked.clear()
    for session, fields in (("greedy", {}), ("other", settings)):
        harness.submit(
            Prompt(session_id=session, prompt="And?", max_new_tokens=5, ignore_eos=True, **fields)
        )
    harness.run()
    assert asked.count(False) == 5  # the steps of the other reply
    reference_reply(model, harness, "greedy", 5)
    monkeypatch.setattr(Penalties, "change_all", True)
    asked.clear()
    harness.prompt("greedy", "So?", max_new_tokens=5)
    assert asked.count(False) == 5


@needs_vectors
def test_a_checkpoint_in_bfloat16_is_computed_in_it(tmp_path: Path) -> None:
    """Rounding may decide a token, so its replies are not those of stock code; a turn's states serve the next one."""
    model = llama()
    model.network.bfloat16()
    folder = save(model, tmp_path)
    settings = HandlerConfig(model=str(folder), dtype="bfloat16")
    loaded = load_model(settings, folder, torch.device("cpu"))
    assert loaded.network.dtype is loaded.forward.layout.dtype is torch.bfloat16
    assert isinstance(loaded.forward.shortcut, FusedLayers)
    harness = Harness(loaded)
    harness.open("s")
    for is_second in (False, True):
        usage = harness.prompt("s", "What is it?", max_new_tokens=12)["usage"]
        assert usage["completion_tokens"]
        assert (usage["prompt_tokens_details"]["cached_tokens"] > 10) == is_second


@needs_vectors
@pytest.mark.parametrize(
    "name", [*SEEING, "internvl", "llava_onevision", "mistral3", "pixtral", "smolvlm"]
)
def test_replies_about_images_are_those_of_stock_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network reads images whose tokens see one another, but not what follows them."""
    model = BUILDERS[name]()
    accelerate(model, HandlerConfig())
    forward = model.forward
    assert isinstance(forward.shortcut, FusedLayers)
    forward.shortcut.cuts_steps = True
    by_network, read = list[dict[str, Any]](), forward._by_model

    def spy(rows: Rows, inputs: dict[str, Any]) -> Tensor:
        by_network.append(inputs)
        return read(rows, inputs)

    monkeypatch.setattr(forward, "_by_model", spy)
    harness = Harness(model)
    harness.open("s", [noise(1), noise(2, 80, 30)])
    for question in ("What color is the circle?", "And the square?"):
        harness.prompt("s", question, max_new_tokens=12)
        reference_reply(model, harness, "s", 12)
    assert all(by_network)
    assert bool(by_network) == (name in READ_BY_NETWORK)
    assert not any(forward.shortcut._hooks)


@torch.inference_mode()
def test_the_stock_network_computes_positions_where_queries_grow() -> None:
    """Ministral 3's logits beside a session of that length are those of stock code, too."""
    model = BUILDERS["ministral3"]()
    fused = fused_of(model.forward)
    (kv,) = sessions(model, 1)
    rows = rows_of(model, [kv], 7)
    assert fused(rows) is not None
    assert fused(rows._replace(positions=torch.tensor([[FAR - 1]]))) is not None
    assert fused(rows._replace(positions=torch.tensor([[FAR]]))) is None


@torch.inference_mode()
def test_hooks_are_called() -> None:
    """While a module has a hook, the stock network runs."""
    model = llama()
    fused = fused_of(model.forward)
    (kv,) = sessions(model, 1)
    rows = rows_of(model, [kv], 7)
    assert fused(rows) is not None
    calls: list[object] = []
    layer: torch.nn.Module = model.network.model.layers[1].mlp.down_proj
    handle = layer.register_forward_hook(lambda *_: calls.append(0))
    assert fused(rows) is None
    assert model.forward.use_shortcut(fused) == "it returned no logits"
    handle.remove()
    assert model.forward.use_shortcut(fused) == ""
    handle = layer.register_forward_pre_hook(lambda *_: calls.append(1))
    before = len(calls)
    model.forward(rows.ids, rows.spans, None, [0])
    assert len(calls) == before + 1
    handle.remove()
    model.forward([8], [Span(kv, kv.length, 1)], None, [0])
    assert len(calls) == before + 1


@torch.inference_mode()
def test_no_expert_is_chosen_twice_for_scores_that_are_not_numbers() -> None:
    """A model whose numbers overflow gives no numbers, and writes nowhere else."""
    model = BUILDERS["mixtral"]()
    fused = fused_of(model.forward)
    for layer in model.network.model.layers:
        layer.mlp.gate.weight.data.fill_(torch.nan)
    (kv,) = sessions(llama(), 1)
    kv.reserve(kv.length + 1)
    spans = [Span(kv, kv.length, 1)] * 64
    logits = fused(Rows([1] * 64, torch.full((1, 64), kv.length), spans))
    assert logits is not None
    assert logits.isnan().all()


@torch.inference_mode()
def test_more_rows_than_it_takes_are_cut_or_left_to_the_network() -> None:
    """A long step gives the logits and the states of its tokens in any pieces, of sessions side by side."""
    model = llama()
    fused = fused_of(model.forward)
    ours, theirs = sessions(model, 3), sessions(model, 3)
    counts, keep = (1, 150, 70), [0, 63, 64, 150, 220]
    made = []
    for caches in (ours, theirs):
        for kv, count in zip(caches, counts, strict=True):
            kv.reserve(kv.length + count)
        made.append([Span(kv, kv.length, n) for kv, n in zip(caches, counts, strict=True)])
    ids = [3 + i % 40 for i in range(sum(counts))]
    positions = model.forward.text_positions(made[0])
    expected = model.forward(ids, made[1], positions, keep)
    found = fused(Rows(ids, positions, made[0], keep))
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for mine, their in zip(ours, theirs, strict=True):
        for part, other in zip(mine.states, their.states, strict=True):
            stop = their.length
            torch.testing.assert_close(part[:, :stop], other[:, :stop], rtol=1e-4, atol=1e-4)
    fused.cuts_steps = False
    assert fused(Rows(ids[:65], positions[:, :65], made[0][:2], [64])) is None
    assert fused(Rows(ids[:1], positions[:, :1], made[0][:1], [0])) is not None


def test_layers_that_differ_are_rejected() -> None:
    """A shortcut that differs is not used, and the reason has the difference."""
    model = MODELS["mistral"]()
    library = language_kernels()
    windows = [None] * len(model.forward.windows)
    wrong = FusedLayers(find_decoder(model.network), model.forward.layout, windows, library)
    assert "logits differ" in model.forward.use_shortcut(wrong)
    assert model.forward.shortcut is None


def test_a_shortcut_that_fails_is_rejected() -> None:
    """An error during verification is a reason, not a failure."""
    model = llama()

    def broken(_: Rows) -> torch.Tensor:
        raise RuntimeError("no such instruction")

    assert model.forward.use_shortcut(broken) == "RuntimeError: no such instruction"


@needs_vectors
@pytest.mark.parametrize("name", ["cohere", "gemma3n", "gpt2", "qwen2_moe"])
def test_other_models_keep_their_layers(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Fused layers are not considered for other families, and the log names what is unknown."""
    model = BUILDERS[name]()
    with caplog.at_level(logging.INFO):
        accelerate(model, HandlerConfig(attention_kernels=False))
    assert model.forward.shortcut is None
    assert "torch's operators compute the decoder layers" in caplog.text
    assert "is not known" in caplog.text


def test_it_can_be_turned_off() -> None:
    """`handler.fusedLayers: false` leaves the layers to torch's operators."""
    model = llama()
    accelerate(model, HandlerConfig(fused_layers=False))
    assert model.forward.shortcut is None


def test_without_a_compiler_the_model_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By torch's operators. A warning, once in a process, has the remedy."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = llama()
    with caplog.at_level(logging.WARNING):
        assert find_fused(model.network, model.forward.layout, model.forward.windows) is None
        accelerate(model, HandlerConfig())
    assert model.forward.shortcut is None
    assert all("no C++ compiler" in record.message for record in caplog.records)
