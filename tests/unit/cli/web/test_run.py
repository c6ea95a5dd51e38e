"""The start of the chat page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ts_stateful.cli.parser import build_parser

_WITHOUT_GRADIO = (
    "import sys; sys.modules['gradio'] = None; from ts_stateful.cli import main;"
    " sys.exit(main(['chat', '--web']))"
)


def test_a_missing_extra_is_named() -> None:
    """Without Gradio the command ends with the line that installs it."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_GRADIO], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'torchserve-stateful[web]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_port_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A port is a whole number of at least 1; by default it is Gradio's."""
    assert build_parser().parse_args(["chat", "--web"]).web_port == 7860
    with pytest.raises(SystemExit):
        build_parser().parse_args(["chat", "--web", "--web-port", "0"])
    assert "--web-port" in capsys.readouterr().err
