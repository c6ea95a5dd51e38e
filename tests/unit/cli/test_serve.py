"""`ts-stateful serve`: its options together, and its help."""

from __future__ import annotations

from pathlib import Path

import pytest

from ts_stateful.cli import main


@pytest.mark.parametrize("front", ["asgi", "torchserve"])
def test_a_missing_archive_is_refused(
    front: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the missing file."""
    assert main(["serve", str(tmp_path / "none.mar"), "--front", front, "--port", "0"]) in (1, 2)
    assert "none.mar" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-key", "{file}"], "--tls-certificate and --tls-key belong together"),
        (["--tls-client-ca", "{file}"], "--tls-client-ca needs"),
        (["--config", "{file}.missing"], "no such file: {file}.missing"),
        (["--front", "torchserve", "{file}"], "takes one archive"),
        (["--front", "torchserve", "--host", "0.0.0.0"], "are for the front asgi"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    options: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started."""
    file = tmp_path / "file"
    file.touch()
    given = [option.format(file=file) for option in options]
    assert main(["serve", *given, str(file)]) == 2
    assert problem.format(file=file) in capsys.readouterr().err


def test_the_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names the ports, their defaults and examples."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for word in ("--http-port", "8080", "--grpc-port", "7070", "ready", "--front", "--tls-key"):
        assert word in printed
