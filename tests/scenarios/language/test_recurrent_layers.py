"""Sessions of models with recurrent states: they go back to the ends of turns, and compute little again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.chats import Chats, cached
from tests.support.harness import Harness, reference_reply
from tests.support.tiny import MODELS, MORE_MODELS
from tests.unit.language.network.test_one_pass import RECURRENT
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.text.dialogue import common_prefix
from ts_stateful.protocol.requests import Fork, Prompt, Rewind

NEW_TOKENS = 12
NAMES = ("mamba2", "qwen3_next")


@pytest.fixture(params=NAMES)
def harness(request: pytest.FixtureRequest) -> Harness:
    """A session of three turns."""
    harness = Harness(MODELS[request.param]())
    harness.open("s")
    for question in ("What color is the circle?", "And the square?", "Which one is yellow?"):
        prompt(harness, "s", question)
    return harness


def prompt(harness: Harness, session_id: str, text: str) -> int:
    """Run an exact turn; return its cached tokens."""
    answer = harness.prompt(session_id, text, max_new_tokens=NEW_TOKENS)
    reference_reply(harness.model, harness, session_id, NEW_TOKENS)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def length(harness: Harness, session_id: str) -> int:
    """The tokens of a session."""
    return len(harness.engine.table.get(session_id).state.log)


def length_before(harness: Harness) -> int:
    """The tokens before the last turn."""
    session = harness.engine.table.get("s")
    return session.state.turns[-1].delta.keep


def test_a_rewind_goes_back_to_the_end_of_a_turn(harness: Harness) -> None:
    """All but its last token is there."""
    harness.ask(Rewind(session_id="s", to_turn=2))
    assert prompt(harness, "s", "Again?") == length_before(harness) - 1


def test_a_fork_of_an_earlier_turn_has_its_states(harness: Harness) -> None:
    """And the source goes on from its own."""
    whole = length(harness, "s")
    harness.ask(Fork(session_id="s", new_session_id="f", at_turn=2))
    before = length(harness, "f")
    assert prompt(harness, "f", "Again?") == before - 1
    assert prompt(harness, "s", "Go on.") == whole - 1


def test_their_bytes_are_counted(harness: Harness) -> None:
    """Those of the last states and of those that are kept; an eviction frees them all."""
    context = harness.engine.table.get("s").state
    layout = harness.model.forward.layout
    assert context.kv.recurrent is not None
    tokens = context.kv.num_bytes - context.kv.recurrent.num_bytes
    assert context.kv.recurrent.num_bytes >= 2 * layout.recurrent_bytes
    assert tokens == context.kv.length * layout.token_bytes
    harness.engine.table.evict_idle()
    assert context.device_bytes == 0
    assert prompt(harness, "s", "Once more?") == 0


def test_a_prompt_that_is_sent_again_computes_its_last_token_alone(harness: Harness) -> None:
    """The states before the reply are kept."""
    first = harness.prompt("s", "Again?", max_new_tokens=NEW_TOKENS)
    harness.ask(Rewind(session_id="s", to_turn=3))
    prompt(harness, "s", "Again?")
    last = harness.engine.table.get("s").state.turns[-1]
    assert first["text"] == last.text


def test_a_step_that_fails_after_some_of_its_sessions_changes_none(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt has a pass of its own; those before the failure were computed already."""
    harness.open("other")
    prompt(harness, "other", "What color is the circle?")
    forward = harness.model.forward
    failed: list[int] = []

    def exhausted(self: Forward, ids: Any, spans: Any, *args: Any, **inputs: Any) -> Any:
        kv = harness.engine.table.get("other").state.kv
        starts = [span.start for span in spans if span.kv is kv]
        if starts and len(ids) == len(spans) and not failed:
            failed.extend(starts)
            raise torch.OutOfMemoryError
        return call(forward, ids, spans, *args, **inputs)

    call = Forward.__call__
    monkeypatch.setattr(Forward, "__call__", exhausted)
    requests = [
        harness.submit(Prompt(session_id=name, prompt="Go on.", max_new_tokens=NEW_TOKENS))
        for name in ("s", "other")
    ]
    harness.run()
    assert len(failed) == 1
    assert all("error" not in harness.last(request) for request in requests)
    for name in ("s", "other"):
        reference_reply(harness.model, harness, name, NEW_TOKENS)


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_replies_of_many_sessions_are_computed_in_one_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is exact, also after others have ended, and beside a fork with the same states."""
    harness = Harness({**MODELS, **MORE_MODELS}[name]())
    rows: list[int] = []

    def counted(self: Forward, ids: Any, spans: Any, *args: Any, **inputs: Any) -> Any:
        if all(span.num_tokens == 1 and span.start for span in spans):
            rows.append(len(spans))
        return call(self, ids, spans, *args, **inputs)

    call = Forward.__call__
    monkeypatch.setattr(Forward, "__call__", counted)
    for index in range(3):
        harness.open(f"s{index}")
    for turn in range(2):
        for index in range(3):
            question = "What is it? " * (1 + (index + turn) % 3)
            count = NEW_TOKENS - 3 * index
            harness.submit(Prompt(session_id=f"s{index}", prompt=question, max_new_tokens=count))
        harness.run()
    harness.ask(Fork(session_id="s0", new_session_id="f"))
    for session_id in ("s0", "f"):
        question = f"And {session_id}?"
        harness.submit(Prompt(session_id=session_id, prompt=question, max_new_tokens=NEW_TOKENS))
    harness.run()
    assert max(rows) == 3
    for index in range(1, 3):
        reference_reply(harness.model, harness, f"s{index}", NEW_TOKENS - 3 * index)
    for session_id in ("s0", "f"):
        reference_reply(harness.model, harness, session_id, NEW_TOKENS)


@pytest.mark.parametrize("name", NAMES)
def test_a_beginning_that_several_have_at_once_is_lent_whole(name: str) -> None:
    """States cannot be cut, so a step ends where the prompts part."""
    chats = Chats(MODELS[name](), config={"handler": {"prefillChunk": 100}})
    asked = [("user", "A small circle and a large square. " * 3 + end) for end in ("Why?", "And?")]
    requests = [
        chats.harness.submit(
            chats.chat(told, session=f"s{number}"), creates_session=True, ephemeral=True
        )
        for number, told in enumerate(asked)
    ]
    chats.harness.run()
    for number, told in enumerate(asked):
        chats.check([told], f"s{number}")
    logs = [chats.session(f"s{number}").state.log for number in range(2)]
    assert cached(chats.harness.last(requests[1])) == common_prefix(*logs)
