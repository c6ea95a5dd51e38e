"""Sessions with LoRA adapters: each replies as the stock model into which its adapter is merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.memory_store import MemoryStore
from tests.support.tiny import llama, llava
from tests.support.tiny.latent import deepseek_v3
from tests.support.tiny.lora import merged, save_adapter
from tests.support.tiny.more_text import bloom
from tests.support.tiny.recurrent_text import lfm2
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import Model, accelerate, use_adapters
from ts_stateful.protocol.chat import Chat, Said
from ts_stateful.protocol.requests import Fork, Open, Prompt, Rewind

NEW_TOKENS = 12
SYSTEM = "You are a helpful assistant that answers all questions about shapes and their colors. "


class Adapted:
    """A model with two adapters, and for each session's adapter the model that it is compared with."""

    def __init__(self, model: Model, folder: Path, targets: Any = ("q_proj", "down_proj")) -> None:
        self.model = model
        folders = {
            name: save_adapter(model, folder / name, seed, targets)
            for seed, name in enumerate(("red", "blue"))
        }
        use_adapters(model, folders)
        self.merged = {name: merged(model, path) for name, path in folders.items()}

    def check(self, harness: Harness, session_id: str, adapter: str | None) -> str:
        """Assert that the last reply is exact, and return it."""
        model = self.merged[adapter] if adapter else self.model
        reference_reply(model, harness, session_id, NEW_TOKENS)
        return harness.engine.table.get(session_id).state.turns[-1].text


@pytest.fixture
def adapted(tmp_path: Path) -> Adapted:
    """Llama with two adapters."""
    return Adapted(llama(), tmp_path)


def _open(harness: Harness, session_id: str, adapter: str | None, **fields: Any) -> dict[str, Any]:
    command = Open(session_id=session_id, adapter=adapter, **fields)
    return harness.ask(command, creates_session=True)


def _talk(adapted: Adapted, harness: Harness) -> list[str]:
    """Let five sessions take turns side by side; return the last replies of the first three."""
    chosen = {"s0": None, "s1": "red", "s2": "blue", "s3": "red", "s4": None}
    for session_id, adapter in chosen.items():
        assert "error" not in _open(harness, session_id, adapter)
    for turn in range(2):
        for index, session_id in enumerate(chosen):
            text = "What is it? " * (1 + 3 * index * turn)
            harness.submit(Prompt(session_id=session_id, prompt=text, max_new_tokens=NEW_TOKENS))
        harness.run()
        said = [adapted.check(harness, *each) for each in chosen.items()]
    return said[:3]


@pytest.mark.parametrize(
    ("make", "targets"),
    [
        (llama, ("q_proj", "v_proj", "gate_proj")),
        (llava, ("k_proj", "o_proj")),
        (deepseek_v3, ("q_b_proj", "kv_a_proj_with_mqa")),
        (bloom, ("query_key_value", "dense_4h_to_h")),
        (lfm2, ("q_proj", "in_proj", "w1")),
    ],
)
def test_sessions_with_several_adapters_run_side_by_side(
    make: Callable[[], Model], targets: tuple[str, ...], tmp_path: Path
) -> None:
    """Two adapters and none in the same steps, also in models with a pass for each session."""
    model = make()
    adapted = Adapted(model, tmp_path, targets)
    base, red, blue = _talk(adapted, Harness(model))
    assert len({base, red, blue}) == 3


def test_a_step_of_several_adapters_is_one_pass(adapted: Adapted) -> None:
    """Rows of all adapters go through the network together."""
    harness = Harness(adapted.model)
    for session_id, adapter in (("a", "red"), ("b", "blue"), ("c", None)):
        _open(harness, session_id, adapter)
        harness.submit(Prompt(session_id=session_id, prompt="Go on.", ignore_eos=True))
    harness.steps(9)
    passes: list[int] = []
    hook = adapted.model.network.register_forward_hook(lambda *_: passes.append(1))
    harness.steps(1)
    hook.remove()
    assert passes == [1]


def test_faster_ways_of_computing_leave_adapters_alone(adapted: Adapted) -> None:
    """Compiled layers, fused layers and kernels, where this machine has them."""
    accelerate(adapted.model, HandlerConfig())
    _talk(adapted, Harness(adapted.model))


def test_what_happens_to_a_session_keeps_its_adapter(adapted: Adapted) -> None:
    """A fork, a rewind and an eviction."""
    harness = Harness(adapted.model)
    _open(harness, "s", "red")
    for text in ("What is it?", "And the square?"):
        harness.prompt("s", text, max_new_tokens=NEW_TOKENS)
    assert "error" not in harness.ask(Fork(session_id="s", new_session_id="f", at_turn=1))
    harness.ask(Rewind(session_id="s", to_turn=1))
    harness.engine.table.evict_idle()
    for session_id in ("f", "s"):
        harness.prompt(session_id, "Which one is yellow?", max_new_tokens=NEW_TOKENS)
        adapted.check(harness, session_id, "red")


def test_system_prompts_are_shared_by_adapter(adapted: Adapted) -> None:
    """The states that one adapter computed are not another one's."""
    harness = Harness(adapted.model)
    found = []
    for session_id, adapter in (("a", "red"), ("b", "red"), ("c", "blue"), ("d", None)):
        answer = _open(harness, session_id, adapter, system=SYSTEM)
        found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        harness.prompt(session_id, "What is it?", max_new_tokens=NEW_TOKENS)
        adapted.check(harness, session_id, adapter)
    assert found == [False, True, False, False]


def test_an_unknown_adapter_is_refused(adapted: Adapted) -> None:
    """The error names those that there are; a session's adapter stays."""
    harness = Harness(adapted.model)
    error = _open(harness, "s", "green")["error"]
    assert (error["field"], "red, blue" in error["message"]) == ("adapter", True)
    _open(harness, "s", "red")
    ask = Prompt(session_id="s", prompt="Hello", adapter="blue")
    assert "the session has the adapter red" in harness.ask(ask)["error"]["message"]
    assert "error" not in harness.ask(Prompt(session_id="s", prompt="Hello", adapter="red"))


def test_a_conversation_without_a_session_continues_with_its_adapter(adapted: Adapted) -> None:
    """The same messages with another adapter are another conversation."""
    harness = Harness(adapted.model)

    def ask(adapter: str | None, *said: str) -> dict[str, Any]:
        roles = ("user", "assistant", "user")
        messages = tuple(Said(role, (text,)) for role, text in zip(roles, said, strict=False))
        request = harness.submit(
            Chat(
                session_id=f"alone-{len(harness.events)}",
                messages=messages,
                adapter=adapter,
                max_new_tokens=NEW_TOKENS,
            ),
            creates_session=True,
            ephemeral=True,
        )
        harness.run()
        return harness.last(request)

    reply = ask("red", "What is it?")["text"]
    cached = [
        ask(adapter, "What is it?", reply, "And now?")["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        for adapter in ("blue", None, "red")
    ]
    assert cached[:2] == [0, 0]
    assert cached[2] > 10


def test_chats_at_once_share_with_those_of_their_adapter(adapted: Adapted) -> None:
    """The states that one adapter computes are not another one's."""
    harness, requests = Harness(adapted.model), list[str]()
    for number, adapter in enumerate(("red", "blue", None, "red", None)):
        said = (Said("user", (f"{SYSTEM}Question {number}?",)),)
        command = Chat(session_id=f"s{number}", adapter=adapter, messages=said, max_new_tokens=4)
        requests.append(harness.submit(command, creates_session=True))
    harness.run()
    usages = [harness.last(request)["usage"] for request in requests]
    shared = [usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in usages]
    assert shared == [False, False, False, True, True]
    for number, adapter in enumerate(("red", "blue", None, "red", None)):
        model = adapted.merged[adapter] if adapter else adapted.model
        reference_reply(model, harness, f"s{number}", 4)


def test_another_server_with_the_same_adapter_continues_a_session(
    adapted: Adapted, tmp_path: Path
) -> None:
    """The name of an adapter is not enough: its content must be the same."""
    store = MemoryStore()
    first = Harness(adapted.model, store=store)
    _open(first, "s", "red")
    first.prompt("s", "What is it?", max_new_tokens=NEW_TOKENS)
    other = llama()
    use_adapters(other, {"red": save_adapter(other, tmp_path / "other", 7)})
    refused = Harness(other, store=store).prompt("s", "And now?")
    assert "the session was made with adapter" in refused["error"]["message"]
    second = Harness(adapted.model, store=store)
    second.prompt("s", "And now?", max_new_tokens=NEW_TOKENS)
    adapted.check(second, "s", "red")
