"""The start of the chat page."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.support.ports import free_port
from ts_stateful.cli.parser import build_parser

_WITHOUT_GRADIO = (
    "import sys; sys.modules['gradio'] = None; from ts_stateful.cli import main;"
    " sys.exit(main(['chat', '--web', '--web-port', sys.argv[1]]))"
)


def refusal(port: int) -> str:
    """Return the error of the command without Gradio."""
    command = [sys.executable, "-c", _WITHOUT_GRADIO, str(port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_missing_extra_is_named() -> None:
    """Without Gradio the command ends with the line that installs it."""
    assert "pip install 'torchserve-stateful[web]'" in refusal(free_port())


def test_a_port_in_use_is_reported_first() -> None:
    """The import of Gradio takes seconds."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"127.0.0.1:{port} is in use; name another --web-port" in refusal(port)


def test_the_port_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A port is a whole number of at least 1; by default it is Gradio's."""
    assert build_parser().parse_args(["chat", "--web"]).web_port == 7860
    with pytest.raises(SystemExit):
        build_parser().parse_args(["chat", "--web", "--web-port", "0"])
    assert "--web-port" in capsys.readouterr().err
