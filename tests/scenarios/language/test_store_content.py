"""What is kept out of the store, and what sessions survive then."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.memory_store import MemoryStore
from tests.support.pictures import noise
from tests.support.tiny import llava
from tests.unit.protocol.test_declarations import GOOD
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import OpenedEntry, TurnEntry, history, session_logs
from ts_stateful.protocol.requests import Fork, Info, Prompt, Rewind


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees."""
    return llava()


@pytest.fixture
def store() -> MemoryStore:
    """A store that all engines use."""
    return MemoryStore()


def ask(text: str = "Hello", **fields: Any) -> Prompt:
    return Prompt(
        **{"session_id": "s", "prompt": text, "max_new_tokens": 8, "ignore_eos": True, **fields}
    )


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


def saved(harness: Harness, session_id: str = "s") -> bool:
    return bool(harness.ask(Info(session_id=session_id))["saved"])


def test_without_images_what_is_only_text_goes_on_elsewhere(
    model: Model, store: MemoryStore
) -> None:
    """Texts are written as ever, and nothing else is."""
    first, second = (Harness(model, store=store, content="text") for _ in range(2))
    first.open("s", system="Be brief.")
    first.ask(ask())
    assert saved(first)
    assert second.ask(ask("And now?"))["turn"] == 2
    reference_reply(model, second, "s", 8)
    first.open("seen", [noise(1)])
    assert not saved(first, "seen")
    assert not [key for key in store._values if key.startswith("blobs/")]


def test_without_images_what_has_some_needs_an_engine_that_has_them(
    model: Model, store: MemoryStore
) -> None:
    """Where they are known it goes on; elsewhere it is told that they have to be sent again, and nobody holds it."""
    first, second, third = (Harness(model, store=store, content="text") for _ in range(3))
    first.open("s", [noise(1)])
    first.ask(ask())
    refused = third.ask(ask("And now?"))
    assert code(refused) == "session_not_found"
    assert "with its images" in refused["error"]["message"]
    assert not store.list("adopted")
    second.open("other", [noise(1)])
    second.media = first.media
    assert second.ask(ask("And now?"))["turn"] == 2
    reference_reply(model, second, "s", 8)


def test_without_texts_nothing_that_was_said_is_written(model: Model, store: MemoryStore) -> None:
    """Neither as text nor as token ids, nor what was seen; only that it was done, when, and how much it was."""
    first = Harness(model, store=store, content="none")
    first.open("s", [noise(1)], system="Be brief.", metadata={"user": "Anna"})
    told = first.ask(ask("A secret?", stop=("private",)))
    first.ask(Rewind(session_id="s", to_turn=0))
    first.ask(ask("Another secret?", turn=1))
    fork = Fork(session_id="s", new_session_id="f")
    first.ask(fork, creates_session=True)
    for session_id in ("s", "f"):
        opened, turns = history(session_logs(store).log(session_id).read().entries)
        assert [turn.number for turn in turns] == [1]
        kept: tuple[OpenedEntry | TurnEntry, ...] = (opened, *turns)
        assert not any(entry.messages or entry.images for entry in kept)
        assert not opened.token_ids + turns[0].prompt_ids + turns[0].reply_ids
        assert turns[0].usage.completion_tokens == 8
    everything = b"".join(store._values.values())
    for said in ("secret", "brief", "Anna", "private", str(told["text"])):
        assert said.encode() not in everything


def test_without_texts_sessions_end_with_their_engine(model: Model, store: MemoryStore) -> None:
    """Which has all of them: evicted states are computed again, and a turn that is sent twice is done once."""
    first, second = (Harness(model, store=store, content="none") for _ in range(2))
    first.open("s")
    reply = first.ask(ask(turn=1))
    assert not saved(first)
    first.engine.table.evict_idle()
    assert first.ask(ask("And now?"))["timing"]["restored_from"] == "replay"
    reference_reply(model, first, "s", 8)
    again = first.ask(ask(turn=1))
    assert (again["replayed"], again["text"]) == (True, reply["text"])
    refused = second.ask(ask())
    assert code(refused) == "session_not_found"
    assert "open it again" in refused["error"]["message"]
    assert code(second.open("s")) == "session_exists"
    first.close("s")
    assert code(second.ask(ask())) == "session_closed"


def test_a_session_with_turns_that_were_not_written_is_not_taken_for_whole(
    model: Model, store: MemoryStore
) -> None:
    """It began where texts are written; going back behind such a turn makes it whole again."""
    first, second = Harness(model, store=store), Harness(model, store=store, content="none")
    first.open("s")
    first.ask(ask())
    assert second.ask(ask("And now?"))["turn"] == 2
    assert code(Harness(model, store=store).ask(ask("And then?"))) == "session_not_found"
    second.ask(Rewind(session_id="s", to_turn=1))
    assert Harness(model, store=store).ask(ask("And then?"))["turn"] == 2


def test_what_is_written_of_a_sequence_cannot_be_less() -> None:
    """A configuration that asks for it is refused, with what to do instead."""
    with pytest.raises(ConfigError, match="commitEvery"):
        load_config({"handler": {**GOOD, "store": {"content": "none"}}})
