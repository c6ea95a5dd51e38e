"""The examples with recurrent state, as their pages tell people to run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import ROOT
from tests.e2e.state_server import StateModels
from ts_stateful.torchserve import TorchServe

CLIENT = ROOT / "examples" / "grpc_client.py"
SAMPLES = "sample1.txt,sample2.txt,sample3.txt"


def run(*command: str, server: TorchServe, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a command; its server listens on free ports."""
    environ = {
        **os.environ,
        "HTTP_PORT": str(server.ports.http),
        "PYTHONPATH": str(ROOT / "handlers"),
    }
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def client(
    models: StateModels, *arguments: str, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs examples/grpc_client.py."""
    ports = models.server.ports
    addresses = ["--port", str(ports.grpc), "--management-port", str(ports.grpc_management)]
    return run(sys.executable, str(CLIENT), *addresses, *arguments, server=models.server, cwd=cwd)


def test_the_client_counts(state_models: StateModels, tmp_path: Path) -> None:
    """Again and again from the beginning, from every folder."""
    for cwd in (ROOT, tmp_path):
        done = client(state_models, "infer_stream2", "counter", "seq_0", SAMPLES, cwd=cwd)
        assert (done.returncode, done.stdout) == (0, "1\n3\n6\n"), done.stderr
    (tmp_path / "sample1.txt").write_text("5")
    done = client(state_models, "infer_stream2", "counter", "seq_0", SAMPLES, cwd=tmp_path)
    assert done.stdout == "5\n7\n10\n"


def test_the_client_explains_what_torchserve_cannot(
    state_models: StateModels, tmp_path: Path
) -> None:
    """A call that would hang for ever ends, and names the one that does not; so do the other mistakes."""
    hung = client(state_models, "--timeout", "1", "infer", "counter", "sample1.txt")
    assert (hung.returncode, "use `infer_stream2`" in hung.stderr) == (1, True)
    wrong = client(state_models, "infer_stream2", state_models.named("ledger"), "seq_0", SAMPLES)
    assert (wrong.returncode, "use `infer`" in wrong.stderr) == (1, True)
    (tmp_path / "one.txt").write_text("one")
    refused = client(state_models, "infer_stream2", "counter", "seq_1", "one.txt", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: invalid_request (400): ")
    missing = client(state_models, "infer", "counter", "none.txt")
    assert (missing.returncode, "no such file" in missing.stderr) == (1, True)


def test_the_client_speaks_the_other_calls(state_models: StateModels) -> None:
    """Each where it is answered; a call without a session is a sequence of its own."""
    for command, model in (
        ("infer", "ledger"),
        ("infer_stream", "ledger"),
        ("infer_stream", "ledger-async"),
        ("infer", "ledger-async"),
    ):
        done = client(state_models, command, state_models.named(model), "sample2.txt")
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_the_client_registers_models(
    state_models: StateModels, continuous_server: TorchServe
) -> None:
    """By the name of an archive in the model store; where TorchServe refuses it says how that is changed."""
    state_models.pack("lstm-registered")
    done = client(state_models, "register", "again", "lstm-registered.mar")
    assert done.returncode == 0, done.stderr
    assert "registered" in done.stdout
    done = client(state_models, "unregister", "again")
    assert done.returncode == 0, done.stderr
    missing = client(state_models, "register", "nothing")
    assert missing.returncode == 1
    ports = continuous_server.ports
    refused = run(
        *[sys.executable, str(CLIENT), "--management-port", str(ports.grpc_management)],
        *["unregister", "chat"],
        server=continuous_server,
    )
    assert (refused.returncode, "enable_model_api" in refused.stderr) == (1, True), refused


def blocks(language: str, page: Path) -> list[str]:
    """A page's fenced blocks of a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )


def test_the_counters_page_runs(state_models: StateModels) -> None:
    """Its curl lines and its Python."""
    page = ROOT / "examples" / "counter" / "README.md"
    script = "set -euo pipefail\n" + "\n".join(blocks("sh", page))
    for _ in range(2):
        done = run("bash", "-c", script, server=state_models.server)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("136{")
        assert '"data":[5]' in done.stdout.replace(" ", "")
    (block,) = blocks("python", page)
    block = block.replace("grpc://127.0.0.1:7070", state_models.server.grpc_url)
    done = run(sys.executable, "-c", block, server=state_models.server)
    assert (done.returncode, done.stdout) == (0, "[1]\n[3]\n[6]\n"), done.stderr


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_forecaster_needs_its_state(state_models: StateModels, transport: str) -> None:
    """What it says of a series that it follows is several times nearer than what it says of single values."""
    server, model = state_models.server, state_models.named("lstm")
    url = server.grpc_url if transport == "grpc" else server.http_url
    script = str(ROOT / "examples" / "lstm" / "client.py")
    done = run(sys.executable, script, "--url", url, "--model", model, server=server)
    assert done.returncode == 0, done.stderr
    found = re.search(r"with the state ([\d.]+), without it ([\d.]+)", done.stdout)
    assert found is not None
    assert 3 * float(found[1]) < float(found[2])
