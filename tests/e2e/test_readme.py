"""The commands and programs in the README and the documents, executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import ROOT
from tests.e2e.state_server import AsgiStateModels
from ts_stateful.serving.server import LocalServer


def blocks(language: str, document: str = "README.md") -> list[str]:
    """Return a document's fenced blocks of a language, in their order."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(command: list[str], server: LocalServer, **options: object) -> str:
    """Run a command in the repository's root; return what it printed."""
    scripts = Path(sys.executable).parent  # `ts-stateful` is there, as in an activated environment
    environ = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "HTTP_PORT": str(server.ports.http),
        "TS_STATEFUL_URL": server.grpc_url,
        "PYTHONPATH": str(ROOT / "handlers"),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("document", ["README.md", "docs/start.md"])
def test_the_shell_blocks_hold_a_conversation(
    continuous_server: LocalServer, document: str
) -> None:
    """Open, ask, stream, close, a prompt that opens a session by itself, and the commands."""
    script = "set -euo pipefail\n" + "\n".join(blocks("sh", document))
    printed = run(["bash", "-c", script], continuous_server)
    assert re.search(r'"text": ?"red"', printed)
    assert re.search(r'data: \{"text": ?"blue"', printed)
    assert re.search(r'"closed": ?true', printed)
    assert "three" in printed


def test_the_protocols_curl_lines_fork_and_go_back(continuous_server: LocalServer) -> None:
    """The conversation at the beginning of docs/protocol.md."""
    (script,) = blocks("sh", "docs/protocol.md")
    printed = run(["bash", "-c", "set -euo pipefail\n" + script], continuous_server)
    said = re.findall(r'"text": ?"([^"]*)"', printed)
    assert said == ["triangle", "yellow", "red"]
    assert printed.count("closed") == 2


def test_openais_client_runs_as_shown(continuous_server: LocalServer) -> None:
    """Without a session, in one, and a text without messages, as docs/clients.md has it."""
    shown = blocks("python", "docs/clients.md")
    others = ("tritonclient", "tools=")  # of other servers and models
    script = "".join(block for block in shown if not any(name in block for name in others))
    script = script.replace("http://127.0.0.1:8080", continuous_server.http_url)
    printed = run([sys.executable, "-c", script], continuous_server).splitlines()
    assert printed[1] == "True"
    assert printed[2]


def test_tritons_client_runs_as_shown(asgi_state_models: AsgiStateModels) -> None:
    """A sequence of docs/clients.md."""
    shown = blocks("python", "docs/clients.md")
    (script,) = [block for block in shown if "tritonclient" in block]
    server = asgi_state_models.server
    address = server.http_url.removeprefix("http://")
    script = script.replace("127.0.0.1:8080", address)
    assert run([sys.executable, "-c", script], server).split() == ["[1]", "[3]", "[6]"]


@pytest.mark.parametrize("document", ["README.md", "docs/start.md"])
def test_the_python_blocks_run(continuous_server: LocalServer, document: str) -> None:
    """The client library as the documents show it."""
    for block in blocks("python", document):
        script = block.replace("grpc://127.0.0.1:7070", continuous_server.grpc_url)
        printed = run([sys.executable, "-c", script], continuous_server)
        assert printed.startswith("triangle")
        assert printed.endswith("yellow\n")


def test_the_page_of_sessions_is_one_conversation(continuous_server: LocalServer) -> None:
    """Each block goes on where the last one ended."""
    script = "".join(blocks("python", "docs/sessions.md"))
    script = script.replace("grpc://127.0.0.1:7070", continuous_server.grpc_url)
    printed = run([sys.executable, "-c", script], continuous_server).splitlines()
    assert printed[:2] == ["red", "blue"]
    assert printed[-1] == "three"


def test_openais_responses_run_as_shown(continuous_server: LocalServer) -> None:
    """A picture, and a question about it that names the response before."""
    (script,) = blocks("python", "docs/responses.md")
    base = f"{continuous_server.http_url}/predictions/chat/1.0"
    script = script.replace("http://127.0.0.1:8080", base)
    assert run([sys.executable, "-c", script], continuous_server) == "red\nblue True\n"


@pytest.mark.parametrize("document", ["README.md", "docs/start.md"])
def test_every_block_is_run_or_marked_as_shown(document: str) -> None:
    """Commands are `sh` or `python`, which run here, or `console`, which is only shown."""
    fences = set(re.findall(r"^```(.*)$", (ROOT / document).read_text(), flags=re.MULTILINE))
    assert fences == {"", "sh", "python", "console"}


def test_the_command_chats(continuous_server: LocalServer) -> None:
    """Questions from standard input, answers on standard output."""
    scene = str(ROOT / "examples" / "shapes" / "scene.png")
    printed = run(
        [sys.executable, "-m", "ts_stateful.cli", "chat", "--image", scene],
        continuous_server,
        input="What color is the circle?\nAnd the square?\n/info\n/quit\n",
    )
    assert "red" in printed
    assert "blue" in printed
    assert "cached" in printed


@pytest.mark.parametrize("name", ["model-config.yaml"])
def test_the_command_checks_a_configuration(continuous_server: LocalServer, name: str) -> None:
    """The configuration that comes with the project is sound."""
    command = [sys.executable, "-m", "ts_stateful.cli", "check", str(Path(ROOT) / name)]
    assert "ok" in run(command, continuous_server)
