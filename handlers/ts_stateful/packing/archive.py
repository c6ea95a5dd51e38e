"""An archive of a model, the handler and its configuration."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml

from ts_stateful.config.given_model import GivenModel
from ts_stateful.config.manifest import CONFIG, MANIFEST
from ts_stateful.config.schema import Config, ConfigError

__all__ = ["Contents", "PackingFailed", "write_archive"]

_HANDLERS = Path(__file__).resolve().parents[2]
_CODE = (
    *("*.py", "*.cpp", "*.h", "*.class", "*.java", "*.css", "*.js", "*.properties", "*.xml"),
    "py.typed",
)
# The process dies with its parent, of which it gets the id; 1 is PR_SET_PDEATHSIG of prctl(2), and 9 SIGKILL.
# The archiver's own command exits with 0 where this raises.
_ARCHIVER = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(sys.argv.pop(1)) or os._exit(1)
from model_archiver.model_packaging import generate_model_archive as main; main()"""
_REPORT_S = 0.5
Report = Callable[[int, int], None]  # of bytes that are written, and of all


class PackingFailed(Exception):
    """The archive could not be written; the message says why."""


@dataclass(frozen=True)
class Contents:
    """The content of an archive. `document` is what `config` was read from; all files below `files` are packed too."""

    name: str
    version: str
    config: Config
    document: Mapping[str, object]
    model: GivenModel | None = None
    files: Path | None = None


def write_archive(
    contents: Contents, output: Path, *, as_folder: bool = False, report: Report | None = None
) -> Path:
    """Write `output/<name>.mar`, or with `as_folder` the folder `output/<name>`; return its path.

    Raises:
        ConfigError: a file of the model has a name of the package's own.
        PackingFailed: there is something else in the archive's place, or the archiver failed.
        OSError: a file cannot be read or written.
    """
    output.mkdir(parents=True, exist_ok=True)
    result = output.resolve() / (contents.name if as_folder else f"{contents.name}.mar")
    if as_folder and result.exists() and not (result / MANIFEST).is_file():
        raise PackingFailed(f"{result} exists and is no model archive")
    # The archiver packs all that is beside the code, and erases $TMPDIR/<name>. So it gets a clean copy and a folder of its
    # own, both beside the output: a model may not fit into /tmp.
    with tempfile.TemporaryDirectory(prefix=".archive.", dir=output) as folder:
        work = Path(folder).resolve()
        _lay_out(contents, work)
        process = _archiver(contents, work, as_folder=as_folder)
        _finish(process, work, report)
        if as_folder and result.exists():
            shutil.rmtree(result)  # the archiver would leave its stale files
        (work / "made" / result.name).replace(result)
    return result


def _lay_out(contents: Contents, work: Path) -> None:
    """Make the folders `code`, `made` and `tmp`, and the configuration."""
    code = work / "code"
    for name in ("code", "made", "tmp"):
        (work / name).mkdir()
    package = _HANDLERS / "ts_stateful"
    for file in sorted(file for pattern in _CODE for file in package.rglob(pattern)):
        _copy(file, code / file.relative_to(_HANDLERS))
    model = contents.model
    if model is not None and model.folder is not None:
        _require_targets(model.folder)
        (code / "model").symlink_to(model.folder.resolve())  # the archiver follows it
    if model is not None and model.file is not None:
        _copy_new(model.file, code / model.file.name)
    if contents.files is not None:
        for file in sorted(contents.files.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.name[0] != ".":
                _copy_new(file, code / file.relative_to(contents.files))
    text = yaml.safe_dump(dict(contents.document), sort_keys=False, allow_unicode=True)
    (work / CONFIG).write_text(text, encoding="utf-8")


def _require_targets(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if not path.exists():
            raise PackingFailed(f"{path} is a link to {path.readlink()}, which is missing")
        if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
            raise PackingFailed(f"{path} is a link to a folder that holds it; remove it")


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def _copy_new(file: Path, target: Path) -> None:
    if target.exists():
        if target.is_file() and target.read_bytes() == file.read_bytes():
            return  # the model's own file, which is in `files` too
        raise ConfigError(f"{file}: {target.name} is a name of the package's own")
    _copy(file, target)


def _archiver(contents: Contents, work: Path, *, as_folder: bool) -> subprocess.Popen[str]:
    """Start torch-model-archiver."""
    if find_spec("model_archiver") is None:
        raise PackingFailed(
            "torch-model-archiver is missing; install it: pip install 'torchserve-stateful[server]'"
        )
    entry = "generation_handler.py" if contents.config.state is None else "state_handler.py"
    options = {
        "--model-name": contents.name,
        "--version": contents.version,
        "--handler": str(_HANDLERS / entry),
        "--extra-files": str(work / "code"),
        "--config-file": str(work / CONFIG),
        # Stored, not deflated: weights do not compress.
        "--archive-format": "no-archive" if as_folder else "zip-store",
        "--export-path": str(work / "made"),
    }
    command = [sys.executable, "-c", _ARCHIVER, str(os.getpid()), "--force"]
    return subprocess.Popen(
        [*command, *(part for option in options.items() for part in option)],
        env={**os.environ, "TMPDIR": str(work / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str], work: Path, report: Report | None) -> None:
    """Wait for the archiver, and report its progress: it copies all files, and then writes the archive."""
    total = 2 * _num_bytes(work / "code")
    with process:
        while True:
            try:
                _, errors = process.communicate(timeout=_REPORT_S)
                break
            except subprocess.TimeoutExpired:
                if report is not None:
                    report(_num_bytes(work / "tmp") + _num_bytes(work / "made"), total)
            except BaseException:
                process.kill()
                raise
    if process.returncode != 0:
        reason = (errors.strip().splitlines() or ["no reason"])[-1]
        kind, _, files = reason.partition("shutil.Error: ")
        if not kind and files:  # a list of sources, targets and reasons, which may have every file
            reason = ast.literal_eval(files)[0][2]
        raise PackingFailed(f"torch-model-archiver failed: {reason}")


def _num_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder, which may change meanwhile."""
    total = 0
    for where, _, names in os.walk(folder, followlinks=True):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(where) / name).stat().st_size
    return total
