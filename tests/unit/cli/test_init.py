"""`ts-stateful init`: questions, and a configuration that the check accepts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

from ts_stateful.cli import main


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in an empty folder; return the file that is written by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model-config.yaml"


def give(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_answers_become_a_configuration(
    answer: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong answer is asked for again, with the reason; an empty one takes the default."""
    model = repository / "examples" / "shapes" / "model"
    stores = "disk", "file://data", "file:///data"
    give(monkeypatch, "no/where/", str(model), "many", "100", "", "8GiB", *stores)
    assert main(["init"]) == 0
    out = capsys.readouterr().out
    assert "no/where/ is neither a folder" in out
    assert "'many' is not a whole number" in out
    assert out.count("`url` has to be one of file:///folder, redis://") == 2
    assert f"ts-stateful serve {model} --config model-config.yaml" in out
    document = yaml.safe_load(answer.read_text())
    assert document["maxNumSequence"] == 100
    assert document["handler"]["model"] == str(model)
    assert document["handler"]["store"] == {"url": "file:///data"}
    assert document["handler"]["device"] == "cpu"
    assert main(["check", str(answer)]) == 0


def test_a_machine_with_gpus(
    answer: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One engine each; the memory asked for is that of a GPU."""
    give(monkeypatch, str(repository / "examples/shapes/model"), "", "2", "16GiB", "none")
    assert main(["init"]) == 0
    handler = yaml.safe_load(answer.read_text())["handler"]
    assert handler["engines"] == 2
    assert handler["deviceCacheBytes"] < 16 * 2**30


def test_a_file_that_is_there_stays(
    answer: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless the user says otherwise."""
    answer.write_text("minWorkers: 1\n")
    assert main(["init"]) == 1
    assert "give --force" in capsys.readouterr().err
    for wrong in ("missing/a.yaml", str(answer.parent)):
        assert main(["init", "--force", wrong]) == 1  # before any question
        assert f"{wrong} cannot be written" in capsys.readouterr().err
    give(monkeypatch, str(repository / "examples/shapes/model"), *[""] * 4)
    assert main(["init", "--force"]) == 0
    assert "maxNumSequence" in answer.read_text()
    give(monkeypatch, str(repository / "examples/shapes/model"), *[""] * 4)
    assert main(["init", "two words.yaml"]) == 0
    assert "ts-stateful check 'two words.yaml'" in capsys.readouterr().out


def test_answers_that_end_write_nothing(
    answer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after Ctrl-D."""
    give(monkeypatch)
    assert main(["init"]) == 1
    assert "nothing was written" in capsys.readouterr().err
    assert not answer.exists()
