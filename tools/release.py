"""Builds a release into dist/ and checks it: `make release`. It signs nothing and uploads nothing."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tools.wheels import build, run, use_everywhere
from ts_stateful.version import __version__

_ROOT = Path(__file__).resolve().parents[1]
_DIST = _ROOT / "dist"
_SEVERAL_ROOTS = "W009"  # the modules of the handlers, which TorchServe imports by file


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


def main() -> int:
    """Build and check; return the exit status."""
    shutil.rmtree(_DIST, ignore_errors=True)
    wheel = build(_DIST)
    built = sorted(_DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", _SEVERAL_ROOTS, wheel)
    use_everywhere(wheel)
    date, text = notes((_ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)
    (_DIST / "RELEASE_NOTES.md").write_text(text, encoding="utf-8")
    for path in [*built, _DIST / "RELEASE_NOTES.md"]:
        print(f"{path.relative_to(_ROOT)}  {path.stat().st_size / 1e6:.2f} MB")
    if date == "unreleased":
        print(f"write the date of {__version__} into CHANGELOG.md before you tag it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
