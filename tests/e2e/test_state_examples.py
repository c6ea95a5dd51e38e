"""The examples with recurrent state, as their pages tell people to run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import ROOT
from tests.e2e.state_server import StateModels
from tests.e2e.steps import sum_of
from ts_stateful.serving.server import LocalServer

CLIENT = ROOT / "examples" / "grpc_client.py"
SAMPLES = "sample1.txt,sample2.txt,sample3.txt"


def run(*command: str, server: LocalServer, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
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


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """What a command that failed says."""
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


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
    assert "use `infer_stream2`" in failure(hung)
    # Refused as it is, the step runs: it ends its sequence, so that it leaves nothing behind.
    wrong = client(
        state_models, "infer_stream2", state_models.named("ledger"), "seq_0", "sample1.txt"
    )
    assert "use `infer`" in failure(wrong)
    (tmp_path / "one.txt").write_text("one")
    refused = client(state_models, "infer_stream2", "counter", "seq_1", "one.txt", cwd=tmp_path)
    assert failure(refused).startswith("error: invalid_request (400): ")
    missing = client(state_models, "infer", "counter", "none.txt")
    assert "no such file" in failure(missing)


def test_the_client_speaks_the_other_calls(state_models: StateModels, tmp_path: Path) -> None:
    """Each where it is answered; a call without a session is a sequence of its own."""
    step = {"inputs": [{"name": "number", "data": [2]}], "outputs": [{"name": "sum"}], "end": True}
    (tmp_path / "step.json").write_text(json.dumps(step))
    for command, model in (
        ("infer", "ledger"),
        ("infer_stream", "ledger"),
        ("infer_stream", "ledger-async"),
        ("infer", "ledger-async"),
    ):
        done = client(state_models, command, state_models.named(model), "step.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert sum_of(json.loads(done.stdout)) == 2


def test_the_client_registers_models(state_models: StateModels) -> None:
    """By the name of an archive in the model store."""
    state_models.pack("lstm-registered")
    done = client(state_models, "register", "again", "lstm-registered.mar")
    assert done.returncode == 0, done.stderr
    assert "registered" in done.stdout
    done = client(state_models, "unregister", "again")
    assert done.returncode == 0, done.stderr
    missing = client(state_models, "register", "nothing")
    assert "nothing.mar" in failure(missing)


def test_the_client_says_how_models_may_be_registered(continuous_server: LocalServer) -> None:
    """TorchServe refuses it unless it is configured to take models."""
    ports = continuous_server.ports
    refused = run(
        *[sys.executable, str(CLIENT), "--management-port", str(ports.grpc_management)],
        *["unregister", "chat"],
        server=continuous_server,
    )
    assert "enable_model_api" in failure(refused)


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


def test_the_forecasters_page_runs(state_models: StateModels) -> None:
    """Its curl lines: two steps of one sequence, of which the second is the last."""
    state_models.named("lstm")
    (script,) = blocks("sh", ROOT / "examples" / "lstm" / "README.md")
    done = run("bash", "-c", f"set -euo pipefail\n{script}", server=state_models.server)
    assert done.returncode == 0, done.stderr
    answers = re.findall(r'"turn": ?(\d).*?"name": ?"forecast"', done.stdout)
    assert answers == ["1", "2"]
    assert re.search(r'"closed": ?true', done.stdout)


def test_the_keyword_spotter_hears_in_pieces_what_it_hears_at_once(
    state_models: StateModels,
) -> None:
    """Eight microphones, as fast as answers come: words and times are those of whole recordings run here."""
    server, model = state_models.server, state_models.named("keywords")
    script = str(ROOT / "examples" / "keywords" / "client.py")
    options = ["--url", server.grpc_url, "--model", model, "--microphones", "8", "--fast"]
    done = run(sys.executable, script, *options, "--check", server=server)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "8 of 8 microphones" in done.stdout
    assert "real-time factor" in done.stdout


def test_the_keyword_spotters_page_runs(state_models: StateModels) -> None:
    """Its curl line and its Python hear the words of the sample that they send."""
    state_models.named("keywords")
    page = ROOT / "examples" / "keywords" / "README.md"
    (script,) = blocks("sh", page)
    done = run("bash", "-c", f"set -euo pipefail\n{script}", server=state_models.server)
    assert done.returncode == 0, done.stderr
    assert '"name":"word"' in done.stdout.replace(" ", "")
    (block,) = blocks("python", page)
    block = block.replace("grpc://127.0.0.1:7070", state_models.server.grpc_url)
    done = run(sys.executable, "-c", block, server=state_models.server)
    assert (done.returncode, done.stdout) == (0, "music\nkitchen\n"), done.stderr
