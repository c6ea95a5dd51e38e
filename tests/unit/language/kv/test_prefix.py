"""System prompts: computed once for all sessions that open with the same one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import llama, llava, qwen2_vl
from tests.support.tiny.calling import calling
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.prefix import Prefix, prefix_key, prefix_length
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Chat, Respond, Said, Tool

SYSTEM = "You are a helpful assistant who answers every question about pictures in one short word."


@pytest.fixture(scope="module", params=[llama, llava, qwen2_vl])
def model(request: pytest.FixtureRequest) -> Model:
    made: Model = request.param()
    return made


def cached(document: dict[str, Any]) -> int:
    return int(document["usage"]["prompt_tokens_details"]["cached_tokens"])


def opened(harness: Harness, name: str, system: str = SYSTEM, **metadata: Any) -> int:
    """Open a session; return how many of its tokens were shared."""
    pictures = [noise(1)] if harness.model.encoder else []
    return cached(harness.open(name, pictures, system=system, metadata=metadata))


def test_the_second_session_copies_the_system_prompt_and_replies_the_same(model: Model) -> None:
    """Copied states equal computed ones exactly."""
    harness = Harness(model)
    assert opened(harness, "first") == 0
    assert opened(harness, "second") >= 16
    replies = []
    for name in ("first", "second"):
        replies.append(harness.prompt(name, "What is it?", max_new_tokens=6)["text"])
        if not model.encoder:
            reference_reply(model, harness, name, 6)
    assert replies[0] == replies[1]


def test_a_client_side_conversation_finds_it_too(model: Model) -> None:
    """Even an ephemeral one: its session is new every time, and its system prompt the same."""
    harness = Harness(model)
    said = (Said("system", (SYSTEM,)), Said("user", ("What is it?",)))
    answers = [
        harness.ask(
            Chat(session_id=name, messages=said, max_new_tokens=6),
            creates_session=True,
            ephemeral=alone,
        )
        for name, alone in (("a", True), ("b", True), ("c", False))
    ]
    assert [cached(answer) >= 16 for answer in answers] == [False, True, True]
    assert len({answer["text"] for answer in answers}) == 1
    reference_reply(model, harness, "c", 6)
    other = (Said("system", (SYSTEM[::-1],)), Said("user", ("What is it?",)))
    assert cached(harness.ask(Chat(session_id="c", messages=other, max_new_tokens=6))) < 16
    reference_reply(model, harness, "c", 6)
    again = Chat(session_id="d", messages=other, max_new_tokens=6)
    assert cached(harness.ask(again, creates_session=True)) == 0
    reference_reply(model, harness, "d", 6)


def test_tools_belong_to_it() -> None:
    """Agents begin with the same ones, and templates show them within the system prompt."""
    harness = Harness(calling())
    tool = Tool("count", "Count shapes.", {"type": "object", "properties": {}})
    found = []
    for name, text in (("a", "What is it?"), ("b", "Which one?")):
        said = (Said("system", (SYSTEM,)), Said("user", (text,)))
        command = Chat(session_id=name, messages=said, tools=(tool,), max_new_tokens=6)
        found.append(harness.ask(command, creates_session=True, ephemeral=True))
        harness.engine.table.reserve.evict()  # which would lend its own
    assert cached(found[0]) == 0
    assert found[1]["usage"]["prompt_tokens"] - cached(found[1]) < 32


def test_it_outlives_the_sessions_that_opened_with_it(model: Model) -> None:
    """The next session finds it, within the budget for unused entries."""
    harness = Harness(model)
    opened(harness, "first")
    harness.close("first")
    assert opened(harness, "second") > 0
    harness.close("second")
    poor = Harness(model, {"handler": {"sharedCacheBytes": 0}})
    opened(poor, "first")
    poor.close("first")
    assert opened(poor, "second") == 0
    assert poor.engine.table.device_bytes > 0


def test_it_is_counted_once(model: Model) -> None:
    """Sessions hold their own copies; the source counts once."""
    harness = Harness(model)
    opened(harness, "s0")
    before = harness.engine.table.device_bytes
    session = harness.engine.table.get("s0").state
    for name in ("s1", "s2"):
        opened(harness, name)
    assert harness.engine.table.device_bytes == before + 2 * session.device_bytes


def test_the_device_has_room_for_it_or_does_without() -> None:
    """Shared states never exceed the budget: idle sessions make room, a busy one does not."""
    model = llama()
    probe = Harness(model)
    opened(probe, "s")
    prefix = probe.engine.table.device_bytes - probe.engine.table.get("s").state.device_bytes
    alone = probe.engine.table.get("s").state.device_bytes
    for budget, kept in ((alone + prefix // 2, False), (alone + prefix, True)):
        harness = Harness(model, {"handler": {"deviceCacheBytes": budget}})
        opened(harness, "a")
        assert harness.engine.table.device_bytes <= budget
        assert (opened(harness, "b") > 0) == kept
        assert harness.engine.table.device_bytes <= budget


def test_another_prompt_or_another_tenant_shares_nothing(model: Model) -> None:
    """The time of an opening does not reveal other tenants' openings."""
    harness = Harness(model)
    opened(harness, "a", tenant="x")
    assert opened(harness, "b", tenant="y") == 0
    assert opened(harness, "c", SYSTEM + " Please!", tenant="x") == 0
    assert opened(harness, "d", tenant="x") > 0


def test_a_fork_that_begins_with_tools_teaches_it_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ids are others from the first one, though it inherits the name of its source's system prompt."""
    model = calling()
    question, other = Said("user", ("What is it?",)), Said("user", ("Which one?",))
    tool = Tool("count", "Count shapes.", {"type": "object", "properties": {}})

    def ask(harness: Harness, name: str, *said: Said, tools: tuple[Tool, ...] = ()) -> Any:
        """Ask without a session."""
        settings: dict[str, Any] = {"instructions": SYSTEM, "tools": tools, "max_new_tokens": 6}
        command = Respond(session_id=name, messages=said, **settings)
        return harness.ask(command, creates_session=True, ephemeral=True)

    harness = Harness(model)
    with monkeypatch.context() as full:
        full.setattr(Prefix, "learn", lambda *_: None)  # as where memory is short
        first = ask(harness, "a", question)
    ask(harness, "b", question, Said("assistant", (first["text"],)), other, tools=(tool,))
    assert harness.engine.stats().implicit_continued == 1
    harness.engine.table.reserve.evict()  # or the first one would lend its own
    found = ask(harness, "c", other)
    assert cached(found) == 0
    assert found["text"] == ask(Harness(model), "c", other)["text"]


def test_a_session_that_was_evicted_begins_with_it_again() -> None:
    """Only the rest is computed again."""
    harness = Harness(llama())
    opened(harness, "s")
    harness.prompt("s", "What is it?", max_new_tokens=6)
    harness.engine.table.get("s").state.to_record()
    answer = harness.prompt("s", "And now?", max_new_tokens=6)
    assert cached(answer) >= 16
    assert answer["timing"]["restored_from"] == "replay"
    reference_reply(harness.model, harness, "s", 6)


def test_a_prefix_ends_at_the_first_image_and_is_worth_some_tokens() -> None:
    """Different ids and different tenants give different names."""
    assert prefix_length([1] * 20, {7}) == 20
    assert prefix_length([1] * 17 + [7, 7, 1], {7}) == 17
    assert prefix_length([1] * 5 + [7] * 100, {7}) == 0
    keys = {prefix_key(ids, tenant) for ids in ((1, 2), (12,)) for tenant in (None, "a", 1, "1")}
    assert len(keys) == 8


def test_a_device_that_is_full_after_all_ends_nothing() -> None:
    """A prefix that cannot be copied is computed."""

    class Full(KVCache):
        def copy(self, length: int) -> KVCache:
            raise torch.OutOfMemoryError

    kv = Full(llama().forward.layout, torch.device("cpu"))
    kv.length = 20
    prefix = Prefix("p", 20)
    prefix.learn(kv, lambda num_bytes: True)
    assert (prefix.num_bytes, prefix.lend()) == (0, None)
