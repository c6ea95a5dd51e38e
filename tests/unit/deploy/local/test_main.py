"""The command line of the local endpoint, as far as it works without a TorchServe."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.sagemaker.local.__main__ import main


@pytest.fixture
def files(repository: Path, tmp_path: Path) -> list[str]:
    """Return options that name existing files."""
    archive = tmp_path / "chat.mar"
    archive.touch()
    configs = ["--ts-config", str(repository / "config.properties")]
    configs += ["--log-config", str(repository / "log4j2.xml")]
    return ["--mar", str(archive), *configs, "--log-folder", str(tmp_path / "logs")]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """It shows how both clients reach the endpoint, and what it needs."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "sagemaker://demo?endpoint_url=" in text
    assert 'boto3.client("sagemaker-runtime"' in text
    assert "make setup" in text
    assert "make sagemaker-local ARGS=" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--instances", "0"], "0 is not from 1 to 16"),
        (["--instances", "17"], "17 is not from 1 to 16"),
        (["--front", "nginx"], "invalid choice: 'nginx'"),
        (["--endpoint", "a_b"], "hyphens between"),
        (["--endpoint=-a"], "hyphens between"),
        (["--endpoint", "a" * 64], "63 at most"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """Nothing is started."""
    with pytest.raises(SystemExit) as caught:
        main(options)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--mar", "--ts-config", "--log-config"])
def test_a_missing_file_is_named(
    files: list[str], capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    """The status is 1."""
    assert main([*files, missing, "/nonexistent/file"]) == 1
    assert capsys.readouterr().err == "error: no such file: /nonexistent/file\n"


@pytest.mark.parametrize("unused", ["--ts-config", "--log-config"])
def test_torchserves_settings_are_for_torchserve(
    files: list[str], capsys: pytest.CaptureFixture[str], unused: str
) -> None:
    """The other front starts without them; here it finds that the archive is none."""
    options = ["--front", "asgi", "--port", "0", unused, "/nonexistent/file"]
    assert main([*files, *options]) == 1
    assert "chat.mar" in capsys.readouterr().err


def test_a_taken_port_is_named(repository: Path, files: list[str]) -> None:
    """No server was started for it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "deploy.sagemaker.local", *files, "--port", str(port)]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    reason = f"port {port} of 127.0.0.1 is in use; choose another with --port"
    assert done.stderr == f"error: {reason}\n"


def test_make_has_a_target_for_it(repository: Path) -> None:
    """`make help` lists it, and ARGS reach the command."""
    done = subprocess.run(
        ["make", "help"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert "make sagemaker-local " in done.stdout
    command = ["make", "--dry-run", "sagemaker-local", "ARGS=--port 9001"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert "-m deploy.sagemaker.local --port 9001" in done.stdout
