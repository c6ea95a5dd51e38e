"""Sessions in a store that an earlier program wrote: version 1 of the log format."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.store_engines import ask, code
from tests.support.sums import EVERY, Start, add, starter, total
from tests.support.tiny import llava
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import OpenedEntry, TurnEntry, history, session_logs
from ts_stateful.protocol.requests import Close, Info, Rewind
from ts_stateful.store.backends.file import FileStore


@pytest.fixture
def store(repository: Path, tmp_path: Path) -> FileStore:
    """A copy of the store."""
    folder = tmp_path / "store"
    shutil.copytree(repository / "tests" / "data" / "store-v1", folder)
    folder.chmod(0o700)
    return FileStore(folder)


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees."""
    return llava()


@pytest.fixture
def harness(model: Model, store: FileStore) -> Harness:
    """An engine with the model that wrote the sessions; its weights may differ in the last bits on another machine."""
    opened = session_logs(store).log("s").read().entries[0]
    assert isinstance(opened, OpenedEntry)
    object.__setattr__(model, "fingerprint", opened.fingerprint)
    made = Harness(model, store=store)
    made.media["picture-0"] = noise(1, 16, 16)
    return made


@pytest.fixture
def start(store: FileStore) -> Start:
    """Starts an engine of the summing model, at the time when the sequences were written."""
    return starter(store, now=2000.0)


def test_sessions_go_on(harness: Harness, model: Model, store: FileStore) -> None:
    """With their images, texts and the turns that count; their logs have both versions then, and are read again."""
    assert model.encoder is not None
    encoded = model.encoder.num_encoded
    for session_id in ("s", "f"):
        assert harness.ask(Info(session_id=session_id))["turns"] == 2
        answer = harness.prompt(session_id, "Go on", max_new_tokens=8, ignore_eos=True)
        assert (answer["turn"], answer["timing"]["restored_from"]) == (3, "store")
        reference_reply(model, harness, session_id, 8)
    assert model.encoder.num_encoded == encoded
    assert harness.engine.table.get("s").metadata == {"user": "Anna"}
    after = Harness(model, store=store)
    after.media = harness.media
    assert after.ask(Rewind(session_id="s", to_turn=1))["turn"] == 1
    assert after.ask(ask("Again"))["turn"] == 2
    reference_reply(model, after, "s", 8)
    assert after.ask(Close(session_id="s"))["closed"]
    assert not store.list("sessions/s")


def test_a_log_means_the_same(store: FileStore) -> None:
    """Fields that were dropped are passed over."""
    opened, turns = history(session_logs(store).log("s").read().entries)
    assert [(turn.number, turn.messages[0].text) for turn in turns] == [
        (1, "What is it?"),
        (2, "And then?"),
    ]
    assert isinstance(turns[0], TurnEntry)
    assert opened.messages[0] == Message("system", "Be brief.")
    assert opened.images[0].num_tokens > 0


def test_what_became_of_a_session_is_known(harness: Harness) -> None:
    """The mark of a session that was closed is an entry too."""
    assert code(harness.ask(Info(session_id="closed"))) == "session_closed"


@EVERY
@pytest.mark.parametrize(("name", "numbers"), [("one", (3, 1, 4)), ("three", (3, 1, 4, 1, 5))])
def test_sequences_go_on(
    name: str, numbers: tuple[int, ...], every: int, start: Start, store: FileStore
) -> None:
    """From their states and the inputs since then; what an engine adds is read by the next one."""
    expected = list(numbers)
    for number in (2, 7, 1, 8):
        expected.append(number)
        answer = start(every).ask(add(number, name), creates_session=False)
        assert total(answer) == sum(expected)
        assert answer["outputs"][1]["data"] == expected
    assert len(store.list(f"states-model/{name}")) <= every + 1


def test_a_sequence_begins_after_one_that_ended(start: Start) -> None:
    """As does one that was opened without a step, with its metadata."""
    assert code(start().ask(add(1, "over"), creates_session=False)) == "session_not_found"
    assert total(start().ask(add(1, "over"), creates_session=True)) == 1
    harness = start()
    assert total(harness.ask(add(5, "opened"), creates_session=False)) == 5
    assert harness.engine.table.get("opened").metadata == {"who": "me"}


def test_a_step_that_was_answered_is_answered_again(start: Start) -> None:
    """By its number, from the answer in the entry."""
    answer = start(3).ask(add(5, "three", turn=5), creates_session=False)
    assert (total(answer), answer["replayed"]) == (14, True)
