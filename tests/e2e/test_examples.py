"""The programs in examples/ as their users run them, each with what it prints; examples/README.md lists them.

That of LangChain is in test_programs.py, and those with recurrent state are in test_state_examples.py.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from PIL import Image

from tests.e2e.server import ROOT
from tests.e2e.speak import SCENE
from tests.support.ports import free_port
from tests.support.s3_server import s3_server
from ts_stateful.serving.server import LocalServer

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "notebook.ipynb"
NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
ENVIRON = {
    **os.environ,
    "PYTHONPATH": f"{ROOT / 'handlers'}{os.pathsep}{ROOT}",
    "PYTHONUNBUFFERED": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "AWS_ACCESS_KEY_ID": "trial",
    "AWS_SECRET_ACCESS_KEY": "trial",
}


def run(name: str, *arguments: str) -> str:
    """Run an example to its end; return what it printed."""
    program = "node" if name.endswith(".mjs") else sys.executable
    return run_program(program, str(EXAMPLES / name), *arguments)


def run_python(*arguments: str) -> str:
    """Run a program in Python to its end; return what it printed."""
    return run_program(sys.executable, *arguments)


def run_program(*command: str) -> str:
    """Run a program to its end; return what it printed."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["continuous", "asgi"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """TorchServe, and the front without it."""
    server: LocalServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def base_url(request: pytest.FixtureRequest, server: LocalServer) -> str:
    """The base URL of OpenAI's clients, which at the front without TorchServe can be short."""
    path = "/v1" if "asgi" in request.node.callspec.params.values() else "/predictions/chat/1.0/v1"
    return f"{server.http_url}{path}"


def counts(printed: str, form: str) -> list[tuple[int, int]]:
    """Return the cached and the prompt tokens of each line that has both, by a pattern with these names."""
    return [(int(found["cached"]), int(found["prompt"])) for found in re.finditer(form, printed)]


@pytest.mark.parametrize("name", ["vqa_http.py", pytest.param("vqa_http.mjs", marks=NEEDS_NODE)])
def test_plain_http(server: LocalServer, name: str) -> None:
    """A session is opened on an image, asked, streamed and closed without any library."""
    printed = run(name, "--url", f"{server.http_url}/predictions/chat")
    assert re.sub(r"  \[.*?]", "", printed).splitlines() == [
        "How many shapes are there? three",
        "Which shape is yellow? triangle",
        "What color is it? yellow",
        f"closed: {'true' if name.endswith('.mjs') else 'True'}",
    ]
    first, second = counts(printed, r"\[(?P<cached>\d+) of (?P<prompt>\d+) tokens cached]")
    assert 64 < first[0] < second[0] < second[1]  # an image is 64 tokens


def test_streams_over_grpc(server: LocalServer) -> None:
    """Each reply has its time to the first token, and the tokens that were cached."""
    questions = ("What color is the circle?", "And the square?")
    printed = run("stream_grpc.py", *questions, "--url", server.grpc_url)
    assert re.sub(r"  \[.*?]", "", printed).splitlines()[:2] == [
        "What color is the circle? red",
        "And the square? blue",
    ]
    form = r"\[first token \d+ ms, (?P<prompt>\d+) prompt tokens, (?P<cached>\d+) cached, stop]"
    first, second = counts(printed, form)
    assert 64 < first[0] < second[0] < second[1]
    assert printed.splitlines()[2].startswith("2 turns, ")


def test_openais_chats(base_url: str) -> None:
    """The image is computed once, though the client sends it twice."""
    printed = run("openai_chat.py", "--base-url", base_url)
    assert [line.split("  ")[0] for line in printed.splitlines()] == ["red", "blue"]
    (_, whole), (cached, _) = counts(
        printed, r"\[(?P<cached>\d+) of (?P<prompt>\d+) prompt tokens cached]"
    )
    assert cached >= whole


def test_openais_responses(base_url: str) -> None:
    """Three responses follow the first one, each by itself, and the last is a stream."""
    printed = run("openai_responses.py", "--base-url", base_url)
    assert re.sub(r"  \[.*?]", "", printed).splitlines() == [
        "What color is the circle? red",
        "And the square? blue",
        "And the triangle? yellow",
        "delta: three",
        "How many shapes are there? three",
    ]
    (_, whole), *others = counts(printed, r"\[(?P<cached>\d+) of (?P<prompt>\d+) tokens cached]")
    assert len(others) == 3
    assert all(cached >= whole for cached, _ in others)


def test_sessions_side_by_side(server: LocalServer) -> None:
    """All of them are answered, each in its order."""
    address = f"{server.http_url}/predictions/chat"
    lines = run("async_sessions.py", "--url", address, "--sessions", "3").splitlines()
    for number in range(3):
        start = f"session {number}: "
        assert [line.removeprefix(start) for line in lines if line.startswith(start)] == [
            "What color is the circle? red",
            "And the square? blue",
            "Which shape is yellow? triangle",
        ]


def test_a_load_is_measured(server: LocalServer) -> None:
    """Turns, throughput, times and the share of tokens that were cached, over gRPC and HTTP."""
    for url in (server.grpc_url, server.http_url):
        options = ("--sessions", "4", "--turns", "3", "--tokens", "5", "--url", url)
        printed = run("load_test.py", *options)
        assert re.fullmatch(
            r"12 turns in [\d.]+ s\n"
            r"throughput +[\d.]+ turns/s, [\d.]+ tokens/s\n"
            r"first token +p50 \d+ ms, p95 \d+ ms\n"
            r"whole turn +p50 \d+ ms, p95 \d+ ms\n"
            r"cached +\d+ of \d+ prompt tokens, [89]\d %\n",
            printed,
        )


# Not imported here, which takes seconds.
needs_gradio = pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `web`")


@pytest.fixture
def gradio_url(asgi_server: LocalServer) -> Iterator[str]:
    """The page of the example with Gradio, and the server behind it."""
    port = free_port()
    command = [sys.executable, str(EXAMPLES / "gradio_chat.py"), asgi_server.grpc_url]
    environ = {**ENVIRON, "GRADIO_SERVER_PORT": str(port)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert str(port) in process.stdout.readline()  # it serves
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@needs_gradio
def test_a_page_with_gradio(gradio_url: str) -> None:
    """Each client of the page has a session of its own, with the image that it has sent."""
    from gradio_client import Client, handle_file  # noqa: PLC0415 - of the extra `web`

    def ask(client: Any, text: str, *files: Path) -> Any:
        message = {"text": text, "files": [handle_file(file) for file in files]}
        return client.predict(message, api_name="/chat")

    first, second = (Client(gradio_url, verbose=False, analytics_enabled=False) for _ in range(2))
    assert ask(first, "What color is the circle?", SCENE) == "red"
    assert ask(second, "Which shape is blue?", SCENE) == "square"
    assert ask(first, "And the square?") == "blue"
    assert ask(second, "What color is it?") == "blue"
    assert ask(first, "How many questions have I asked?") == "three"


# In a process of its own: Gradio leaves event loops open.
_UNDO = """
import sys
import gradio
from examples.gradio_chat import answer, end, server, sessions

tab, history = gradio.Request(session_hash="tab"), []


def ask(text, *files):
    print(list(answer({"text": text, "files": files}, history, tab))[-1])
    history.extend([{"role": "user"}, {"role": "assistant"}])


ask("What color is the circle?", sys.argv[2])
ask("Which shape is blue?")
del history[-2:]
ask("How many questions have I asked?")
history.clear()
ask("How many questions have I asked?", sys.argv[2])
end(tab)
print(len(sessions))
server.close()
"""


@needs_gradio
def test_a_page_goes_back(asgi_server: LocalServer) -> None:
    """After Undo and Retry the page's history is shorter than the session, and after Clear empty. It ends with the tab."""
    printed = run_python("-c", _UNDO, asgi_server.grpc_url, str(SCENE))
    assert printed.split() == ["red", "square", "two", "one", "0"]


def test_a_bucket_outlives_the_server() -> None:
    """The second server goes on with the session of the first, and closes it."""
    with s3_server() as endpoint:
        httpx.put(f"{endpoint}/trial", trust_env=False).raise_for_status()
        store = f"s3://trial/sessions?region=us-east-1&endpoint_url={endpoint}"
        printed = run("s3_store.py", store)
        listed = httpx.get(f"{endpoint}/trial?list-type=2", trust_env=False).text
    assert store in printed
    assert printed.endswith("And the square? blue\nturns: 2\n")
    assert "What color is the circle? red\n" in printed
    (key,) = re.findall("<Key>(.*?)</Key>", listed)
    assert re.fullmatch("sessions/ended/[0-9a-f]{32}", key)


def test_a_session_moves_to_another_node() -> None:
    """The first node is killed, and the second one has the whole conversation."""
    assert run("two_nodes.py").splitlines() == [
        "first node:  What color is the circle? red",
        "the first node was killed",
        "second node: And the square? blue",
        "turns: 2",
    ]


def seen(path: Path) -> list[Any]:
    """Return what the cells of a notebook have printed, and the pixels that they have shown."""
    found: list[Any] = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                found.append(output.text)
            else:
                png = base64.b64decode(output.data["image/png"])
                found.append(Image.open(io.BytesIO(png)).convert("RGB").tobytes())
    return found


def test_the_notebook(tmp_path: Path) -> None:
    """Its committed outputs are those that it has; `python -m tests.support.notebooks` writes them again."""
    executed = tmp_path / "executed.ipynb"
    run_python("-m", "tests.support.notebooks", str(NOTEBOOK), str(executed))
    assert seen(executed) == seen(NOTEBOOK)
    assert len(seen(NOTEBOOK)) == 8
