"""Certificates for tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["NO_OPENSSL", "has_openssl", "self_signed"]

NO_OPENSSL = "no openssl: apt-get install openssl"


def has_openssl() -> bool:
    """Return True if the program is installed."""
    return shutil.which("openssl") is not None


def self_signed(path: Path, *names: str) -> Path:
    """Write a certificate of loopback and of `names` to `path`, and its key beside it with `.key` added."""
    alternatives = ",".join(["IP:127.0.0.1", *(f"DNS:{name}" for name in names)])
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", f"subjectAltName={alternatives}"]
    command += ["-out", str(path), "-keyout", f"{path}.key"]
    subprocess.run(command, check=True, capture_output=True)
    return path
