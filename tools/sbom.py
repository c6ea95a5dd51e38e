#!/usr/bin/env python3
"""The bills of materials and the licenses of what the images install, from the locks in deploy/locks.

`python tools/sbom.py` writes build/sbom-node.cdx.json, build/sbom-sagemaker.cdx.json (CycloneDX) and
build/THIRD_PARTY_NOTICES.txt. The texts of the licenses are those of the packages that are installed here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from ts_stateful.version import __version__

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "deploy" / "locks"
IMAGES = {"node": ("build", "node"), "sagemaker": ("build", "node", "sagemaker")}
# The machine of the images.
PLATFORM = {
    "python_version": "3.12",
    "python_full_version": "3.12.13",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "sys_platform": "linux",
}
# The warning that is left out is about the graph of dependencies, which a lock does not have.
_CYCLONEDX = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py"]
_CYCLONEDX += ["requirements", "-", "--validate", "--output-reproducible"]
_LICENSE = re.compile(r"(licen[cs]e|copying|notice|copyright|authors)", re.IGNORECASE)
_RULE = "=" * 80


def locked(names: Iterable[str], environment: dict[str, str]) -> dict[str, str]:
    """Return the entries of locks that count in an environment, by package; each entry is its text with its hashes."""
    entries: dict[str, str] = {}
    for name in names:
        text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            requirement = Requirement(line.split(" --hash=")[0]) if line[:1].isalnum() else None
            if requirement and (
                requirement.marker is None or requirement.marker.evaluate(environment)
            ):
                entries[requirement.name] = line
    return entries


def pinned(entry: str) -> str:
    """Return the version of an entry of a lock."""
    (specifier,) = Requirement(entry.split(" --hash=", maxsplit=1)[0]).specifier
    return specifier.version


def write_sbom(image: str, folder: Path) -> Path:
    """Write the bill of materials of an image, and validate it against CycloneDX's schema.

    Raises:
        subprocess.CalledProcessError: it is not valid.
    """
    path = folder / f"sbom-{image}.cdx.json"
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as project:
        project.write(
            f'[project]\nname = "torchserve-stateful"\nversion = "{__version__}"\nlicense = "Apache-2.0"\n'
        )
        project.flush()
        subprocess.run(
            [*_CYCLONEDX, "--pyproject", project.name, "-o", str(path)],
            input="\n".join(locked(IMAGES[image], PLATFORM).values()) + "\n",
            text=True,
            check=True,
        )
    return path


def notices(entries: dict[str, str]) -> Iterator[str]:
    """Yield a section for each package: name, version, license, and the files that its license asks to be kept."""
    for name, entry in sorted(entries.items()):
        yield f"{_RULE}\n{name} {pinned(entry)}\n"
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            yield "Not installed where this file was made. Its wheel has its license.\n"
            continue
        if installed.version != pinned(entry):
            yield f"The license is that of version {installed.version}.\n"
        yield f"License: {_license(installed)}\n"
        yield from (f"\n--- {path}\n{text}\n" for path, text in _texts(installed))


def _license(installed: Distribution) -> str:
    fields = installed.metadata
    given = next((fields[key] for key in ("License-Expression", "License") if key in fields), "")
    classes = [
        value.rpartition(" :: ")[2]
        for value in fields.get_all("Classifier") or []
        if value.startswith("License ::")
    ]
    return given.strip().split("\n")[0] or ", ".join(classes) or "see the files"


def _texts(installed: Distribution) -> Iterator[tuple[str, str]]:
    for file in installed.files or []:
        if file.parts[0].endswith(".dist-info") and _LICENSE.search(file.name):
            path = Path(str(file.locate()))
            if path.is_file():
                yield str(file), path.read_text(encoding="utf-8", errors="replace").strip()


def main(arguments: Sequence[str] = ()) -> int:
    """Write all files into build, or the folder that is given. Return the exit status."""
    folder = Path(arguments[0]) if arguments else ROOT / "build"
    folder.mkdir(parents=True, exist_ok=True)
    written = [write_sbom(image, folder) for image in IMAGES]
    path = folder / "THIRD_PARTY_NOTICES.txt"
    path.write_text("\n".join(notices(locked(IMAGES["sagemaker"], PLATFORM))), encoding="utf-8")
    print(*written, path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
