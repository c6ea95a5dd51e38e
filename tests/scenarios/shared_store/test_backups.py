"""A copy of a store, as the runbook takes and restores it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.store_engines import ask, code
from ts_stateful.language.network.load import Model
from ts_stateful.store.backends.file import FileStore


@pytest.fixture
def restored(model: Model, tmp_path: Path) -> tuple[Harness, Harness]:
    """Return an engine with two turns in a folder, and one with a copy of the folder that lacks a later turn."""
    folder, archive, copy = tmp_path / "store", tmp_path / "sessions.tar", tmp_path / "copy"
    first = Harness(model, store=FileStore(folder))
    first.open("s", [noise(1)])
    first.ask(ask("What is it?", turn=1))
    subprocess.run(["tar", "-C", tmp_path, "-cpf", archive, "store"], check=True)
    first.ask(ask("And now?", turn=2))
    copy.mkdir()
    subprocess.run(["tar", "-C", copy, "-xpf", archive], check=True)
    second = Harness(model, store=FileStore(copy / "store"))
    second.media = first.media
    return first, second


def test_a_session_goes_on_from_its_last_turn_in_the_backup(
    model: Model, restored: tuple[Harness, Harness]
) -> None:
    """With its image, and as stock code does. A client that has seen a later turn finds a gap."""
    _, second = restored
    assert code(second.ask(ask("And then?", turn=3))) == "turn_gap"
    answer = second.ask(ask("And now?", turn=2))
    assert answer["timing"]["restored_from"] == "store"
    reference_reply(model, second, "s", 8)


def test_an_engine_that_holds_a_session_finds_another_log(
    restored: tuple[Harness, Harness], tmp_path: Path
) -> None:
    """If the backup is restored while it runs: its next turn is refused, and nothing is mixed."""
    first, second = restored
    second.ask(ask("Another question", turn=2))
    (tmp_path / "store").rename(tmp_path / "old")
    (tmp_path / "copy" / "store").rename(tmp_path / "store")
    assert code(first.ask(ask("And then?", turn=3))) == "session_moved"
