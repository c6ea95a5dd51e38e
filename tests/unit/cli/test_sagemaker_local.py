"""`ts-stateful sagemaker-local`, as far as it comes without a TorchServe."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ts_stateful.cli import main

COMMAND = "sagemaker-local"


@pytest.fixture
def files(repository: Path, tmp_path: Path) -> list[str]:
    """Options that name files that exist."""
    archive = tmp_path / "chat.mar"
    archive.touch()
    configs = ["--ts-config", str(repository / "config.properties")]
    configs += ["--log-config", str(repository / "log4j2.xml")]
    return ["--mar", str(archive), *configs, "--log-folder", str(tmp_path / "logs")]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """It says how both clients reach the endpoint, and what it needs."""
    with pytest.raises(SystemExit) as caught:
        main([COMMAND, "--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    for text in (
        "sagemaker://demo?endpoint_url=",
        'boto3.client("sagemaker-runtime"',
        "pip install",
    ):
        assert text in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--instances", "0"], "0 is not from 1 to 16"),
        (["--instances", "17"], "17 is not from 1 to 16"),
        (["--endpoint", "a_b"], "hyphens between"),
        (["--endpoint=-a"], "hyphens between"),
        (["--endpoint", "a" * 64], "63 at most"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit) as caught:
        main([COMMAND, *options])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--mar", "--ts-config", "--log-config"])
def test_a_missing_file_is_named(
    files: list[str], capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    """With status 1."""
    assert main([COMMAND, *files, missing, "/nonexistent/file"]) == 1
    assert capsys.readouterr().err == "error: no such file: /nonexistent/file\n"


def test_a_taken_port_is_named(files: list[str]) -> None:
    """And no server was started for it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "ts_stateful.cli", COMMAND, *files, "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: in use on 127.0.0.1: port {port}\n"


def test_a_missing_library_is_named(files: list[str]) -> None:
    """Without the extra the command says what to install."""
    code = (
        "import sys; sys.modules['aiohttp'] = None; from ts_stateful.cli import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, COMMAND, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "error: aiohttp is not installed: pip install 'torchserve-stateful[server,sagemaker]'\n"
    )
