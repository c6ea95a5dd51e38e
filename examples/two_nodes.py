"""Two servers with one store: a session goes on at the second one after the first was killed.

    pip install 'torchserve-stateful[server]'
    python examples/two_nodes.py
    python examples/two_nodes.py --store redis://127.0.0.1:6379/0    # with the extra `redis`

A folder is shared by servers of one machine, a Redis or a bucket by those of several. docs/scaling.md puts a proxy in front of
them, which sends each request to the node of its session, and elsewhere when that is lost.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from ts_stateful.client import connect

SHAPES = Path(__file__).resolve().parent / "shapes"


class Node:
    """A server of its own: `ts-stateful serve`, on free ports."""

    def __init__(self, config: Path) -> None:
        command = [sys.executable, "-m", "ts_stateful.cli", "serve", str(SHAPES / "model")]
        command += ["--config", str(config), "--log-level", "ERROR"]
        for port in ("http", "management", "metrics", "grpc"):
            command += [f"--{port}-port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def grpc_url(self) -> str:
        """Wait until the server answers, and return its address."""
        assert self._process.stdout is not None
        url = ""
        for line in self._process.stdout:
            if line.startswith("grpc "):
                url = line.split()[1]
            if line.strip() == "ready":
                return url
        raise SystemExit("the server does not start")

    def kill(self) -> None:
        """Kill all of its processes at once, as when its machine is lost."""
        node = psutil.Process(self._process.pid)
        for process in [node, *node.children(recursive=True)]:
            process.kill()
        self._process.wait()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # finishes the running turns; nothing after `kill`
        self._process.wait()


def main() -> None:
    """Ask the first node, kill it, ask the second one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", help="a URL of docs/store.md (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "model-config.yaml")
        store = options.store or f"file://{folder}/store"
        config.write_text(f"handler:\n  store:\n    url: {store}\n")
        question = "What color is the circle?"
        with Node(config) as first, Node(config) as second:
            with connect(first.grpc_url()) as client:
                session = client.open(images=[SHAPES / "scene.png"])
                print("first node: ", question, session.ask(question))
            first.kill()
            print("the first node was killed")
            question = "And the square?"
            with connect(second.grpc_url()) as client:
                session = client.attach(session.session_id)
                print("second node:", question, session.ask(question))
                print("turns:", session.info().turns)
                session.close()


if __name__ == "__main__":
    main()
