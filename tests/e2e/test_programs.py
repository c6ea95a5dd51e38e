"""Programs that were written for OpenAI's API work unmodified, and their conversations are not computed twice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.e2e.server import ROOT, SHAPES_MODEL, START_TIMEOUT_S, log_path, pack
from tests.e2e.speak import SCENE
from tests.support.ports import free_ports
from tests.support.tiny import llama, save
from tests.support.tiny.calling import ANSWER, ARGUMENTS, calling
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.client import connect
from ts_stateful.serving.server import LocalServer

_PROGRAMS = ROOT / "tests" / "programs"
_ANSWERS = ["red", "triangle", "yellow"]


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with these programs, which is made once and kept in build/."""
    requirements = _PROGRAMS / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / f"programs-{digest}"
    found = folder / "bin" / "python"
    if not (folder / "complete").exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run(
            [str(uv), "venv", "-q", "--clear", "-p", sys.executable, str(folder)], check=True
        )
        install = [str(uv), "pip", "install", "-q", "-p", str(found), "-r", str(requirements)]
        subprocess.run(
            install,
            check=True,
            env={**os.environ, "UV_HTTP_RETRIES": "8", "UV_SYSTEM_CERTS": "true"},
        )
        (folder / "complete").touch()
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """One server with the shapes model, one that calls a tool, and one of random weights."""
    folder = tmp_path_factory.mktemp("programs")
    models = {
        "chat": SHAPES_MODEL,
        "tools": save(calling(), folder / "calling"),
        "forms": save(llama(), folder / "random"),
    }
    archives = [pack(folder / name, "--name", name, model=model) for name, model in models.items()]
    settings = AsgiServerSettings(
        tuple(map(str, archives)),
        ports=free_ports(),
        log_file=log_path("programs"),
        start_timeout_s=START_TIMEOUT_S,
    )
    with AsgiServer(settings) as server:
        yield server


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # of OpenAI's client
def test_a_response_is_found_at_its_model(server: LocalServer) -> None:
    """By its id alone, and over a WebSocket by the name in the frame."""
    with OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        for model in ("chat", "tools", "forms"):
            asked: Any = {"model": model, "input": "What color is it?", "max_output_tokens": 5}
            made = client.responses.create(**asked)
            assert client.responses.retrieve(made.id) == made
            with client.responses.connect() as socket:
                socket.response.create(**asked, previous_response_id=made.id)
                ends = ("response.completed", "response.incomplete")
                last: Any = next(event for event in socket if event.type in ends)
                assert last.response.model == model
            client.responses.delete(made.id)
            with pytest.raises(NotFoundError, match=made.id):
                client.responses.retrieve(made.id)


def test_all_models_are_listed(server: LocalServer) -> None:
    """Programs offer their users what is listed; under the path of one model that is this one alone."""
    for base, names in (("v1", ["chat", "tools", "forms"]), ("predictions/tools/v1", ["tools"])):
        with OpenAI(base_url=f"{server.http_url}/{base}", api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == names


@pytest.mark.parametrize(
    "name",
    ["langchain", "langchain_responses", "pydantic_ai", "instructor", "litellm", "llama_index"],
)
def test_a_program_works(name: str, python: Path, server: LocalServer) -> None:
    """A picture and three questions, a tool, an object of a class: what the program can do of it."""
    command = [str(python), str(_PROGRAMS / "programs.py"), name]
    done = subprocess.run(
        [*command, f"{server.http_url}/v1", str(SCENE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for first in range(0, len(found.get("texts", ())), 3):
        assert found["texts"][first : first + 3] == _ANSWERS
        one, two, three = found["cached"][first : first + 3]
        assert one == 0 or one < two
        assert 0 < two < three
    assert found.get("streamed", _ANSWERS[0]) == _ANSWERS[0]
    assert found.get("called", ARGUMENTS) == ARGUMENTS
    assert found.get("answer", ANSWER) == ANSWER
    for shape in (found.get("shape"), found.get("called_shape")):
        assert shape is None or (shape["color"] in ("red", "green", "blue"))


def test_the_example_with_langchain(python: Path, server: LocalServer) -> None:
    """examples/langchain_chat.py opens a session by its first request, and computes only what is new in the others."""
    example = ROOT / "examples" / "langchain_chat.py"
    done = subprocess.run(
        [str(python), str(example), "--base-url", f"{server.http_url}/v1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition("  [")[0] for line in lines[:4]] == [
        "What color is the circle? red",
        "And the square? blue",
        "Which shape is yellow? triangle",
        "What color is it? yellow",
    ]
    assert all(int(line.partition("  [")[2].split()[0]) > 64 for line in lines[1:4])  # the image
    session_id = lines[4].rpartition(" ")[2]
    with connect(server.grpc_url) as client, client.attach(session_id) as session:
        assert session.info().turns == 4
