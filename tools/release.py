"""Builds a release into dist/ and checks it: `make release`. It signs nothing and uploads nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_DIST = _ROOT / "dist"
_SEVERAL_ROOTS = "W009"  # the modules of the handlers, which TorchServe imports by file
_USE = "import ts_stateful.client, ts_stateful.protocol.errors, ts_stateful.pb.inference_pb2"


def notes(changelog: str, version: str) -> tuple[str, str]:
    """Return the date of a version, and its section of the changelog.

    Raises:
        ValueError: it has none.
    """
    found = re.search(
        rf"^## {re.escape(version)} \((.+?)\)\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section `## {version} (DATE)`")
    return found[1], found[2].strip() + "\n"


def _run(*command: str | Path, cwd: Path = _ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _python(*arguments: str | Path) -> None:
    _run(sys.executable, *arguments)


def _try_wheel(wheel: Path) -> str:
    """Install the wheel into a fresh environment, and use it there; return its version."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True, symlinks=True)
        here, scripts = Path(folder), Path(folder) / "bin"
        pip = (scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, "-c", _ROOT / "constraints.txt", wheel, cwd=here)
        _run(scripts / "python", "-c", _USE, cwd=here)
        return _run(scripts / "ts-stateful", "--version", cwd=here).split()[-1]


def main() -> int:
    """Build and check; return the exit status."""
    shutil.rmtree(_DIST, ignore_errors=True)
    _python("-m", "build", "--outdir", _DIST)
    (wheel,) = _DIST.glob("*.whl")
    built = sorted(_DIST.iterdir())
    _python("-m", "twine", "check", "--strict", *built)
    _python("-m", "check_wheel_contents", "--ignore", _SEVERAL_ROOTS, wheel)
    version = _try_wheel(wheel)
    date, text = notes((_ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    (_DIST / "RELEASE_NOTES.md").write_text(text, encoding="utf-8")
    for path in [*built, _DIST / "RELEASE_NOTES.md"]:
        print(f"{path.relative_to(_ROOT)}  {path.stat().st_size / 1e6:.2f} MB")
    if date == "unreleased":
        print(f"write the date of {version} into CHANGELOG.md before you tag it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
