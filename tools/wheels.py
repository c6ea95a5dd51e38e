"""Installs the wheel on each Python that it is for, and uses it there: `make wheels`.

Clients in these environments talk to one server, which runs in this environment.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.ports import free_ports
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.version import __version__

_ROOT = Path(__file__).resolve().parents[1]
_MODEL = _ROOT / "examples/shapes/model"
_PROGRAM = _ROOT / "tools/wheel_program.py"
_CLASSIFIER = "Programming Language :: Python :: 3."
_ANSWERS = [str(_MODEL), "100", "", "8GiB", "file:///data"]  # to the questions of `init`
_REPLIES = ["red", "blue", "1"]
_START_TIMEOUT_S = 300.0
# Every page of help; a warning is an error.
_USE = """
import contextlib, io, sys
import ts_stateful.client, ts_stateful.pb.inference_pb2_grpc, ts_stateful.protocol.errors
from ts_stateful.cli import main
from ts_stateful.cli.parser import build_parser
(commands,) = [one.choices for one in build_parser()._actions if one.choices]
for words in [[], *([name] for name in commands)]:
    with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert page.getvalue().startswith("usage: "), words
assert "torch" not in sys.modules
"""


def minors() -> list[int]:
    """Return n of each Python 3.n in the classifiers of setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(_ROOT / "setup.cfg")
    lines = parser["metadata"]["classifiers"].splitlines()
    return [int(line.rpartition(".")[2]) for line in lines if line.startswith(_CLASSIFIER)]


def find(minor: int, path: str, pyenv: Path) -> Path | None:
    """Return an interpreter of Python 3.`minor`: this one, one in the folders of `path`, or one of pyenv's."""
    if sys.version_info[:2] == (3, minor):
        return Path(sys.executable)
    name = f"python3.{minor}"
    on_path = [Path(folder, name) for folder in path.split(os.pathsep)]
    for found in [*on_path, *sorted(pyenv.glob(f"versions/3.{minor}.*/bin/{name}"))]:
        if not os.access(found, os.X_OK):
            continue
        # A shim of pyenv's fails where its version is not chosen.
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


def pythons() -> Iterator[tuple[str, Path | None]]:
    """Yield each version that the wheel is for, with an interpreter if this machine has one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for minor in minors():
        yield f"3.{minor}", find(minor, os.environ["PATH"], pyenv)


def run(*command: str | Path, cwd: Path = _ROOT, stdin: str = "") -> str:
    """Run a command and return its output.

    Raises:
        SystemExit: it failed; with all of its output.
    """
    done = subprocess.run(
        command, cwd=cwd, input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise SystemExit(f"{what}: {found!r}, expected {expected!r}")


def use(python: Path, wheel: Path, server: AsgiServer) -> None:
    """Install the wheel into a fresh environment of `python`, and use it: commands, types, conversations.

    Raises:
        SystemExit: something failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        here, scripts = Path(folder), Path(folder) / "bin"
        run(python, "-m", "venv", here)
        pip = (scripts / "python", "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "-c", _ROOT / "constraints.txt", wheel, cwd=here)
        run(*pip, "check", cwd=here)
        run(scripts / "python", "-W", "error", "-c", _USE, cwd=here)
        command = scripts / "ts-stateful"
        _expect(run(command, "--version", cwd=here), f"ts-stateful {__version__}", "--version")
        run(command, "init", cwd=here, stdin="\n".join([*_ANSWERS, ""]))
        run(command, "check", "model-config.yaml", cwd=here)
        run(command, "plan", "--sessions", "50", "--model", _MODEL, cwd=here)
        program = shutil.copy(_PROGRAM, here)
        mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", here / "cache")
        run(*mypy, "--python-executable", scripts / "python", program, cwd=here)
        scene = _ROOT / "examples/shapes/scene.png"
        for url in (server.http_url, server.grpc_url):
            said = run(scripts / "python", "-W", "error", program, url, scene, cwd=here)
            _expect(said.splitlines(), _REPLIES, url)


def use_everywhere(wheel: Path) -> None:
    """Use the wheel on every Python of this machine that it is for, and print a line for each version.

    Raises:
        SystemExit: something failed.
    """
    settings = AsgiServerSettings(
        (str(_MODEL),), name="chat", ports=free_ports(), start_timeout_s=_START_TIMEOUT_S
    )
    with AsgiServer(settings) as server:
        for version, python in pythons():
            if python is None:
                print(f"Python {version}: skipped, not on this machine")
                continue
            began = time.monotonic()
            use(python, wheel, server)
            print(
                f"Python {version}: the wheel works, {time.monotonic() - began:.0f} s", flush=True
            )


def build(folder: Path) -> Path:
    """Build the sdist and, of that, the wheel into a folder; return the wheel."""
    run(sys.executable, "-m", "build", "--outdir", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def main() -> int:
    """Build the wheel and use it; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        use_everywhere(build(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
