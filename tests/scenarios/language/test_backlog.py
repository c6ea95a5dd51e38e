"""Conversations that wait for a place while all are taken."""

from __future__ import annotations

from tests.support.harness import Harness
from tests.support.tiny import llama
from ts_stateful.protocol.requests import Close, Open, Prompt


def test_a_conversation_waits_for_a_place() -> None:
    """An `open` and a prompt without a session; requests that keep none are refused as before."""
    handler = {"maxQueuedSequences": 2, "onFull": "refuse"}
    harness = Harness(llama(), {"maxNumSequence": 1, "handler": handler})
    harness.open("a")
    opened = harness.submit(Open(session_id="b"), creates_session=True)
    prompted = harness.submit(
        Prompt(session_id="c", prompt="Hi", max_new_tokens=2), creates_session=True
    )
    harness.run()
    assert not {opened, prompted} & harness.events.keys()
    harness.ask(Close(session_id="a"))
    assert harness.last(opened)["session_id"] == "b"
    harness.ask(Close(session_id="b"))
    harness.run()
    assert harness.last(prompted)["turn"] == 1


def test_a_prompt_whose_client_leaves_while_its_session_waits_is_dropped() -> None:
    """It would run without a client, and be committed. The `open` before it stays, as its client waits."""
    handler = {"maxQueuedSequences": 2, "onFull": "refuse"}
    harness = Harness(llama(), {"maxNumSequence": 1, "handler": handler})
    harness.open("a")
    opened = harness.submit(Open(session_id="b"), creates_session=True)
    left = harness.submit(Prompt(session_id="b", prompt="Hi", max_new_tokens=2))
    harness.engine.drop(left)
    harness.ask(Close(session_id="a"))
    assert harness.last(opened)["session_id"] == "b"
    assert harness.prompt("b", "Hi", max_new_tokens=2)["turn"] == 1
    assert left not in harness.events
