"""The beginning of docs/state.md: a model, its configuration, two commands and their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_readme import blocks
from ts_stateful.serving.ports import Ports

_PAGE = "docs/state.md"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The HTTP port of the page's server, made of the page's files by the page's command."""
    (tmp_path / "gru.py").write_text(blocks("python", _PAGE)[0])
    (tmp_path / "model-config.yaml").write_text(blocks("yaml", _PAGE)[0])
    ports = Ports().filled()
    command = [
        str(Path(sys.executable).parent / "ts-stateful"),
        *blocks("sh", _PAGE)[0].split()[1:],
    ]
    for name in ("http", "grpc", "management", "metrics"):
        command += [f"--{name}-port", str(getattr(ports, name))]
    errors = tmp_path / "errors"
    with tempfile.TemporaryDirectory(prefix="ts-") as short, errors.open("w") as log:
        environ = {**os.environ, "TMPDIR": short}
        with subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server:
            assert server.stdout is not None
            try:
                assert "ready\n" in server.stdout, errors.read_text()
                yield ports.http
            finally:
                server.terminate()


def test_the_first_lines_serve_a_gru(port: int) -> None:
    """The files and commands are those of the page, and so is what is printed."""
    script = blocks("sh", _PAGE)[1].replace("8080", str(port))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    printed, shown = (
        [json.loads(line) for line in text.splitlines()]
        for text in (done.stdout, blocks("json", _PAGE)[0])
    )
    for answer, expected in zip(printed, shown, strict=True):
        (values,), (known,) = (
            [one.pop("data") for one in a["outputs"]] for a in (answer, expected)
        )
        assert values == pytest.approx(known, abs=1e-5)
        assert answer == expected
